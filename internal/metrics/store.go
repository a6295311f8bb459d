package metrics

import "github.com/mooncake-sidecar/sidecar/store/embedded"

// memoryTier labels what is in shared memory; the disk tier will have its own.
const memoryTier = "memory"

// AddStore adds the metrics of the embedded store's master. stats is called by
// each scrape.
func (r *Registry) AddStore(stats func() embedded.Stats) {
	var (
		capacity   = gauge("store_capacity_bytes", "Size of the store's data area.", "tier")
		prepared   = gauge("store_prepared_bytes", "Part of the data area that has its memory; the rest is being allocated, or could not be.", "tier")
		used       = gauge("store_used_bytes", "Memory of slots in use.", "tier")
		free       = gauge("store_free_bytes", "Prepared memory that is not in use.", "tier")
		chunks     = gauge("store_chunks", "Whole chunks stored.", "tier")
		namespaces = gauge("store_namespaces", "Namespaces, one for each kind of KV cache that is stored.")
		puts       = counter("store_puts_total", "Puts of shards by what became of them.", "status")
		gets       = counter("store_gets_total", "Gets of shards by what became of them.", "status")
		stored     = counter("store_stored_bytes_total", "Bytes of published shards.")
		corrupt    = counter("store_corrupt_chunks_total", "Chunks that a worker reported as corrupt.")
		removed    = counter("store_removed_chunks_total", "Chunks that went, by reason.", "tier", "reason")
		leases     = gauge("store_leases", "Requests that hold a lease.")
		leased     = gauge("store_leased_bytes", "Memory that leases keep from eviction.")
		unleased   = counter("store_leases_refused_total", "Leases that were cut short because all together had their share.")
		clients    = gauge("store_clients", "Workers that map the store.")
		undeclared = gauge("store_undeclared_clients", "Workers of before a restart that have not been heard of; until then no memory is handed out.")
		reads      = gauge("store_open_reads", "Shards that are being read.")
		openPuts   = gauge("store_open_puts", "Puts under way.")
		recovered  = gauge("store_recovered", "1 when this store was taken over from an earlier daemon, 0 when it was made new.")
		recovery   = gauge("store_recovery_chunks", "Chunks that the takeover found, by what became of them.", "outcome")
	)
	r.inner.MustRegister(&source{
		families: []*family{
			capacity, prepared, used, free, chunks, namespaces, puts, gets, stored, corrupt, removed, leases, leased, unleased,
			clients, undeclared, reads, openPuts, recovered, recovery,
		},
		collect: func(out sink) {
			s := stats()
			out.count(capacity, s.SizeBytes, memoryTier)
			out.count(prepared, s.CapacityBytes, memoryTier)
			out.count(used, s.UsedBytes, memoryTier)
			out.count(free, s.CapacityBytes-min(s.UsedBytes, s.CapacityBytes), memoryTier)
			out.put(chunks, float64(s.Chunks), memoryTier)
			out.put(namespaces, float64(s.Namespaces))
			for status, n := range map[string]uint64{
				"granted": s.PutsGranted, "existing": s.PutsExisting, "no_space": s.PutsNoSpace, "refused": s.PutsRefused,
				"ended": s.PutsEnded, "revoked": s.PutsRevoked, "void": s.PutsVoid,
			} {
				out.count(puts, n, status)
			}
			out.count(gets, s.GetsReady, "ready")
			out.count(gets, s.GetsAbsent, "absent")
			out.count(stored, s.StoredBytes)
			out.count(corrupt, s.Corrupt)
			out.count(removed, s.Removed[embedded.RemovedEvicted], memoryTier, "evicted")
			out.count(removed, s.Removed[embedded.RemovedReset], memoryTier, "reset")
			out.count(removed, s.Removed[embedded.RemovedCorrupt], memoryTier, "corrupt")
			out.put(leases, float64(s.Leases))
			out.count(leased, s.LeasedBytes)
			out.count(unleased, s.LeasesRefused)
			out.put(clients, float64(s.Clients))
			out.put(undeclared, float64(s.Undeclared))
			out.put(reads, float64(s.OpenReads))
			out.put(openPuts, float64(s.OpenPuts))
			found := embedded.Recovery{}
			if s.Recovered != nil {
				found = *s.Recovered
			}
			out.flag(recovered, s.Recovered != nil)
			out.put(recovery, float64(found.Chunks), "kept")
			out.put(recovery, float64(found.Dropped), "dropped")
		},
	})
}
