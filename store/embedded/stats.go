package embedded

// Stats counts what the master did since it started.
type Stats struct {
	Chunks        int // active now
	PutsGranted   uint64
	PutsExisting  uint64
	PutsNoSpace   uint64
	PutsRefused   uint64
	PutsEnded     uint64
	PutsRevoked   uint64
	PutsVoid      uint64
	GetsReady     uint64
	GetsAbsent    uint64
	Corrupt       uint64
	StoredBytes   uint64 // of shards that were published
	LeasesRefused uint64
	Removed       [removeReasons]uint64 // by RemoveReason

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
	// Recovered is what was found when the segment was adopted; nil for a new one.
	Recovered  *Recovery
	UsedSlabs  int
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
	s.UsedBytes = m.alloc.usedBytes()
	s.Recovered = m.recovered
	s.Namespaces = len(m.byDigest)
	return s
}

// Counters returns the counters by name.
func (s *Stats) Counters() map[string]uint64 {
	return map[string]uint64{
		"puts_granted": s.PutsGranted, "puts_existing": s.PutsExisting, "puts_no_space": s.PutsNoSpace,
		"puts_refused": s.PutsRefused, "puts_ended": s.PutsEnded, "puts_revoked": s.PutsRevoked, "puts_void": s.PutsVoid,
		"gets_ready": s.GetsReady, "gets_absent": s.GetsAbsent, "corrupt": s.Corrupt, "leases_refused": s.LeasesRefused,
		"removed_evicted": s.Removed[RemovedEvicted], "removed_reset": s.Removed[RemovedReset], "removed_corrupt": s.Removed[RemovedCorrupt],
	}
}
