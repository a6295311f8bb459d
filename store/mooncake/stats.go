package mooncake

import "maps"

// Stats counts what a Store did.
type Stats struct {
	// Puts and PutBytes were stored, PutsExisting were there before.
	Puts, PutBytes, PutsExisting uint64
	// PutsFailed were granted and came to nothing; PutsNoRoom found the staging
	// memory or the cluster full before.
	PutsFailed, PutsNoRoom uint64
	// PutsChanged of those that failed did not have their checksum any more.
	PutsChanged uint64
	// Gets and GetBytes were read, GetsAbsent were not to be had, GetsNoRoom found
	// the staging memory full, GetsOtherLength were objects of another length.
	Gets, GetBytes, GetsAbsent, GetsNoRoom, GetsOtherLength uint64
	// Outages is how often the cluster began not to answer.
	Outages uint64
	// StagingBytes is the size of the staging memory, StagingFree what is free of it.
	StagingBytes, StagingFree uint64
	// Codes counts the failures of single keys by Mooncake's code.
	Codes map[Code]uint64
}

// maxCodes bounds Codes: what is beyond is counted as CodeInternal.
const maxCodes = 64

func (s *Stats) failed(code Code) {
	if s.Codes == nil {
		s.Codes = map[Code]uint64{}
	}
	if _, known := s.Codes[code]; !known && len(s.Codes) >= maxCodes {
		code = CodeInternal
	}
	s.Codes[code]++
}

// Stats returns what was counted.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Codes = maps.Clone(stats.Codes)
	stats.Outages = s.breaker.opened
	stats.StagingBytes, stats.StagingFree = s.staging.bytes, s.staging.freeBytes
	return stats
}
