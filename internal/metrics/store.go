package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Labels of what is in shared memory, and of what is on disk, where there is a
// tier there.
const (
	memoryTier = "memory"
	diskTier   = "disk"
)

// otherRemoval labels a reason that has none in removals, which a test excludes.
const otherRemoval = "other"

// removals label why chunks went.
var removals = map[embedded.RemoveReason]string{
	embedded.RemovedEvicted: "evicted", embedded.RemovedReset: "reset", embedded.RemovedCorrupt: "corrupt", embedded.RemovedExpired: "expired",
	embedded.RemovedQuota: "quota", embedded.RemovedByCommand: "command", embedded.RemovedForSlab: "slab", embedded.RemovedDemoted: "demoted",
}

// AddStore adds the metrics of the embedded store's master. stats is called by
// each scrape.
func (r *Registry) AddStore(stats func() embedded.Stats) {
	var (
		capacity   = gauge("store_capacity_bytes", "Size of the store's data area.", "tier")
		prepared   = gauge("store_prepared_bytes", "Part of the data area that has its memory; the rest is being allocated, or could not be.", "tier")
		used       = gauge("store_used_bytes", "Memory of slots in use.", "tier")
		pinned     = gauge("store_pinned_bytes", "Part of it that hard pins keep from eviction.", "tier")
		idle       = gauge("store_idle_bytes", "Memory of slabs that are cut into slots and hold no shard: free slots and rests.")
		taken      = counter("store_slabs_taken_total", "Times that slabs changed hands between slot sizes.")
		slots      = counter("store_moved_slots_total", "Shards that were moved within memory, to get a slab free.")
		movedBytes = counter("store_moved_bytes_total", "Bytes of them.")
		free       = gauge("store_free_bytes", "Prepared memory that is not in use.", "tier")
		nodeSize   = gauge("store_node_bytes", "Size of the data area on each NUMA node; none: what is bound to no node.", "node")
		nodeReady  = gauge("store_node_prepared_bytes", "Part of it that has its memory.", "node")
		nodeUsed   = gauge("store_node_used_bytes", "Part of it in slots in use.", "node")
		chunks     = gauge("store_chunks", "Whole chunks stored.", "tier")
		namespaces = gauge("store_namespaces", "Namespaces, one for each kind of KV cache that is stored.")
		puts       = counter("store_puts_total", "Puts of shards by what became of them.", "status")
		gets       = counter("store_gets_total", "Gets of shards by what became of them.", "status")
		created    = counter("store_created_chunks_total", "Chunks that became whole.", "tier")
		stored     = counter("store_stored_bytes_total", "Bytes of published shards.", "tier")
		read       = counter("store_read_bytes_total", "Bytes of shards that were handed out to be loaded.", "tier")
		failures   = counter("store_allocation_failures_total", "Puts of shards that got no memory, by reason.", "reason")
		ages       = &family{
			desc: prometheus.NewDesc(Prefix+"store_eviction_age_seconds", "Time since its last use of each chunk that was evicted.", nil, nil),
		}
		policy     = gauge("store_eviction_policy_info", "The eviction policy in force; the value is 1.", "policy")
		missed     = counter("lookup_missed_chunks_total", "Answers to lookups that a chunk is not there, by reason. Most lookups end at the first.", "reason")
		changes    = counter("store_changes_total", "Entries of the feed of chunks that came and went.")
		expiring   = gauge("store_expiring_chunks", "Chunks with a time to live or a pin that ends.")
		draining   = gauge("store_draining", "1 while an operator lets nothing new be stored.")
		unpinned   = counter("store_pins_refused_total", "Hard pins that were refused because all together had their share.")
		corrupt    = counter("store_corrupt_chunks_total", "Chunks that a worker reported as corrupt.")
		removed    = counter("store_removed_chunks_total", "Chunks that went, by reason.", "tier", "reason")
		leases     = gauge("store_leases", "Requests that hold a lease.")
		leased     = gauge("store_leased_bytes", "Memory that leases keep from eviction.")
		unleased   = counter("store_leases_refused_total", "Leases that were cut short because all together had their share.")
		offers     = counter("store_offers_total", "Hits on which workers were offered references before they asked.")
		declined   = counter("store_offers_declined_total", "Those of them that were not used, or not whole.")
		clients    = gauge("store_clients", "Workers that map the store.")
		undeclared = gauge("store_undeclared_clients", "Workers of before a restart that have not been heard of; until then no memory is handed out.")
		reads      = gauge("store_open_reads", "Shards that are being read.")
		openPuts   = gauge("store_open_puts", "Puts under way.")
		recovered  = gauge("store_recovered", "1 when this store was taken over from an earlier daemon, 0 when it was made new.")
		recovery   = gauge("store_recovery_chunks", "Chunks that the takeover found, by what became of them.", "outcome")
	)
	r.inner.MustRegister(&source{
		families: []*family{
			capacity, prepared, used, pinned, idle, taken, slots, movedBytes, free, nodeSize, nodeReady, nodeUsed, chunks, namespaces, puts, gets, created, stored, read, failures, missed, ages, policy, changes, expiring, draining,
			unpinned, corrupt, removed, leases, leased, unleased, offers, declined, clients, undeclared, reads, openPuts, recovered, recovery,
		},
		collect: func(out sink) {
			s := stats()
			if s.Disk != nil {
				out.count(capacity, s.Disk.CapacityBytes, diskTier)
				out.count(used, s.Disk.UsedBytes, diskTier)
				out.put(chunks, float64(s.Disk.Chunks), diskTier)
				out.count(created, s.Disk.WrittenChunks, diskTier)
				out.count(stored, s.Disk.WrittenBytes, diskTier)
				out.count(read, s.Disk.ReadBytes, diskTier)
				out.count(removed, s.Disk.Evicted, diskTier, "evicted")
				out.count(removed, s.Disk.Removed, diskTier, "command")
			}
			out.count(capacity, s.SizeBytes, memoryTier)
			out.count(prepared, s.CapacityBytes, memoryTier)
			out.count(used, s.UsedBytes, memoryTier)
			out.count(free, s.CapacityBytes-min(s.UsedBytes, s.CapacityBytes), memoryTier)
			for _, n := range s.Nodes {
				node := nodeLabel(n.Node)
				out.count(nodeSize, n.SizeBytes, node)
				out.count(nodeReady, n.CapacityBytes, node)
				out.count(nodeUsed, n.UsedBytes, node)
			}
			out.put(chunks, float64(s.Chunks), memoryTier)
			out.put(namespaces, float64(s.Namespaces))
			for status, n := range map[string]uint64{
				"granted": s.PutsGranted, "existing": s.PutsExisting, "no_space": s.PutsNoSpace,
				"refused": s.PutsRefused + s.PutsDraining + s.PutsOverQuota + s.PutsUntagged,
				"ended":   s.PutsEnded, "revoked": s.PutsRevoked, "void": s.PutsVoid,
			} {
				out.count(puts, n, status)
			}
			for reason, n := range map[string]uint64{
				"no_space": s.PutsNoSpace, "quota": s.PutsOverQuota, "draining": s.PutsDraining, "recovering": s.PutsRefused, "tags": s.PutsUntagged,
			} {
				out.count(failures, n, reason)
			}
			out.count(gets, s.GetsReady, "ready")
			out.count(gets, s.GetsAbsent, "absent")
			out.count(created, s.Created, memoryTier)
			out.count(stored, s.StoredBytes, memoryTier)
			out.count(read, s.ReadBytes, memoryTier)
			out.count(pinned, s.PinnedBytes, memoryTier)
			out.count(idle, s.IdleBytes)
			out.count(taken, s.SlabsTaken)
			out.count(slots, s.SlotsMoved)
			out.count(movedBytes, s.MovedBytes)
			for i, n := range s.Missed {
				out.count(missed, n, embedded.MissReason(i).String())
			}
			out.put(policy, 1, s.Policy)
			out.count(changes, s.Changes)
			out.put(expiring, float64(s.Expiring))
			out.flag(draining, s.Draining)
			out.count(unpinned, s.PinsRefused)
			out <- ageHistogram(ages.desc, &s)
			out.count(corrupt, s.Corrupt)
			for i, n := range s.Removed {
				label, known := removals[embedded.RemoveReason(i)]
				if !known {
					label = otherRemoval
				}
				out.count(removed, n, memoryTier, label)
			}
			out.put(leases, float64(s.Leases))
			out.count(leased, s.LeasedBytes)
			out.count(unleased, s.LeasesRefused)
			out.count(offers, s.Offers)
			out.count(declined, s.OffersDeclined)
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

// nodeLabel names a NUMA node; a store has at most embedded.MaxNodes, and none.
func nodeLabel(node int) string {
	if node < 0 {
		return "none"
	}
	return strconv.Itoa(node)
}

// ageHistogram shows what the store counted in buckets of its own.
func ageHistogram(desc *prometheus.Desc, s *embedded.Stats) prometheus.Metric {
	buckets, n := map[float64]uint64{}, uint64(0)
	for i, bound := range embedded.AgeBounds() {
		n += s.EvictedAges[i]
		buckets[bound.Seconds()] = n
	}
	n += s.EvictedAges[len(embedded.AgeBounds())]
	return prometheus.MustNewConstHistogram(desc, n, s.EvictedAge.Seconds(), buckets)
}
