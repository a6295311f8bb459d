// Package histogram counts durations for as little as a lookup can afford: two
// atomic additions into fixed memory, no lock, no allocation. It keeps what both
// kinds of a Prometheus histogram need, the classic one with few fixed bounds
// and the native one with eight buckets for each power of two, and knows nothing
// of Prometheus itself: internal/metrics turns a [Snapshot] into a metric.
//
// A snapshot that is taken while others count may miss counts that are under
// way; it never shows more in its buckets than in its total.
package histogram
