package embedded

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// ageBounds divide the ages of evicted chunks.
var ageBounds = [...]time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}

// AgeBounds returns the bounds of Stats.EvictedAges.
func AgeBounds() []time.Duration { return ageBounds[:] }

func (s *Stats) countAge(age time.Duration) {
	s.EvictedAge += age
	for i, bound := range ageBounds {
		if age <= bound {
			s.EvictedAges[i]++
			return
		}
	}
	s.EvictedAges[len(ageBounds)]++
}

// Stats counts what the master did since it started.
type Stats struct {
	Chunks        int // active now
	PutsGranted   uint64
	PutsExisting  uint64
	PutsNoSpace   uint64
	PutsRefused   uint64 // while an adopted segment's clients are awaited
	PutsDraining  uint64 // refused while the store is drained
	PutsOverQuota uint64
	PutsUntagged  uint64 // refused because no more salt tags can be told apart
	PinsRefused   uint64
	PutsEnded     uint64
	PutsRevoked   uint64
	PutsVoid      uint64
	GetsReady     uint64
	GetsAbsent    uint64
	Corrupt       uint64
	StoredBytes   uint64 // of shards that were published
	ReadBytes     uint64 // of shards that references were taken on
	Created       uint64 // chunks that lookups began to find, those recovered not among them
	LeasesRefused uint64
	Offers        uint64 // made to clients that follow an engine
	// OffersDeclined are those of which nothing was used, or not all, each once.
	OffersDeclined uint64
	SlabsTaken     uint64 // times that slabs changed hands between slot sizes
	SlotsMoved     uint64 // to get a slab free
	MovedBytes     uint64
	Removed        [removeReasons]uint64 // by RemoveReason
	Missed         [missReasons]uint64   // chunks that lookups did not find, by MissReason
	// EvictedAges counts chunks that were evicted by how long ago their last use
	// was: entry i up to AgeBounds[i], the last one the rest.
	EvictedAges [len(ageBounds) + 1]uint64
	EvictedAge  time.Duration // the sum

	// Gauges.
	Clients       int
	Undeclared    int // clients of an adopted segment that have not been heard of
	OpenReads     int
	OpenPuts      int
	LeasedBytes   uint64
	CapacityBytes uint64 // data area that is allocated
	SizeBytes     uint64 // data area when all of it is allocated
	UsedBytes     uint64 // slots in use
	Leases        int
	IdleBytes     uint64 // of slabs cut into slots, what holds no shard: free slots and rests
	PinnedBytes   uint64 // of chunks that are pinned hard
	Expiring      int    // records with a time to live or a pin's
	Draining      bool
	Changes       uint64 // entries of the change feed since the start
	Policy        string // name of the eviction policy
	// Disk is the disk tier's account and Tiers that of what went between it and
	// memory; Disk is nil without one.
	Disk  *disk.Stats
	Tiers TierStats
	// Recovered is what was found when the segment was adopted; nil for a new one.
	Recovered *Recovery
	UsedSlabs int
	// Nodes are the parts of the data area by NUMA node, in order.
	Nodes      []NodeStats
	Namespaces int
}

// Stats returns a snapshot.
func (m *Master) Stats() Stats {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.stats
	s.Clients, s.Undeclared = len(m.clients), len(m.undeclared)
	s.OpenReads, s.OpenPuts = len(m.reads), len(m.puts)
	s.LeasedBytes, s.Leases = m.leases.bytes, len(m.leases.byHolder)
	s.CapacityBytes = uint64(m.seg.prepared()) * m.seg.SlabBytes
	s.SizeBytes = uint64(m.seg.Slabs) * m.seg.SlabBytes
	for _, c := range m.alloc.classes {
		s.UsedSlabs += c.slabs
	}
	s.Nodes = m.nodeStatsLocked()
	s.UsedBytes, s.IdleBytes = m.alloc.used, m.alloc.idleBytes()
	s.PinnedBytes, s.Expiring, s.Draining = m.pinned, int(m.dated.Load()), m.draining
	s.Changes, s.Policy = m.feed.next, m.policy.Name()
	s.Missed = m.misses.snapshot()
	s.Recovered = m.recovered
	if m.lower != nil {
		s.Tiers = m.lower.stats
		if m.lower.cluster != nil {
			s.Tiers.Cluster.PromiseBytes = m.promiseBytes()
		}
	}
	if tier := m.disk(); tier != nil {
		below := tier.Stats()
		s.Disk = &below
	}
	s.Namespaces = len(m.byDigest)
	return s
}

// Counters returns the counters by name.
func (s *Stats) Counters() map[string]uint64 {
	return map[string]uint64{
		"puts_granted": s.PutsGranted, "puts_existing": s.PutsExisting, "puts_no_space": s.PutsNoSpace,
		"puts_refused": s.PutsRefused, "puts_ended": s.PutsEnded, "puts_revoked": s.PutsRevoked, "puts_void": s.PutsVoid,
		"gets_ready": s.GetsReady, "gets_absent": s.GetsAbsent, "corrupt": s.Corrupt, "leases_refused": s.LeasesRefused,
		"offers": s.Offers, "offers_declined": s.OffersDeclined,
		"puts_draining": s.PutsDraining, "puts_over_quota": s.PutsOverQuota, "puts_untagged": s.PutsUntagged, "pins_refused": s.PinsRefused,
		"slabs_taken": s.SlabsTaken, "slots_moved": s.SlotsMoved, "moved_bytes": s.MovedBytes,
		"removed_expired": s.Removed[RemovedExpired], "removed_quota": s.Removed[RemovedQuota], "removed_command": s.Removed[RemovedByCommand], "removed_slab": s.Removed[RemovedForSlab], "removed_demoted": s.Removed[RemovedDemoted],
		"removed_evicted": s.Removed[RemovedEvicted], "removed_reset": s.Removed[RemovedReset], "removed_corrupt": s.Removed[RemovedCorrupt],
	}
}
