// Package metrics shows what the daemons count to Prometheus. It is the only
// package that knows Prometheus' client: roles keep plain counters and hand out
// snapshots, which are turned into metrics when somebody scrapes. A scrape costs
// the data path a few locks held for microseconds, and nothing between scrapes.
// Durations alone are counted by the client's histograms, which roles see as
// observers that they declare themselves.
//
// There is no global registry: [NewRegistry] makes one for each daemon.
//
// Names begin with mooncake_sidecar_, units are seconds and bytes. Labels have
// few values, all known beforehand except the model, which lookupd bounds; a
// request's id or a hash is never one. Histograms have classic and native
// buckets.
package metrics
