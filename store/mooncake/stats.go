package mooncake

import "maps"

// Stats counts what a Client did, and the Store over it.
type Stats struct {
	// Puts and PutBytes were stored.
	Puts, PutBytes uint64
	// PutsChanged did not have their checksum any more.
	PutsChanged uint64
	// GetBytes were read, GetsOtherLength were objects of another length.
	GetBytes, GetsOtherLength uint64
	// Outages is how often the cluster began not to answer.
	Outages uint64
	// Codes counts the failures of single keys by Mooncake's code.
	Codes map[Code]uint64

	// Of a Store: PutsExisting were there before, PutsFailed were granted and came to
	// nothing, PutsNoRoom found the staging memory or the cluster full before.
	PutsExisting, PutsFailed, PutsNoRoom uint64
	// Gets were given out, GetsAbsent were not to be had, GetsNoRoom found the
	// staging memory full.
	Gets, GetsAbsent, GetsNoRoom uint64
	// StagingBytes is the size of the staging memory, StagingFree what is free of it.
	StagingBytes, StagingFree uint64
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

func (c *Client) statsLocked() Stats {
	stats := c.stats
	stats.Codes = maps.Clone(stats.Codes)
	stats.Outages = c.breaker.opened
	return stats
}
