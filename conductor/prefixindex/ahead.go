package prefixindex

import "github.com/mooncake-sidecar/sidecar/conductor/kvevents"

// Storing and removing take their time from memory, not from computing: each cell and
// each record is somewhere else. The functions here load what some blocks will ask
// for, all at once: loads that do not wait for each other take a fraction of the time.
// What they return means nothing; it keeps the loads from being left out.

// aheadOfHashes loads what some hashes lead to.
func (s *space) aheadOfHashes(hashes []kvevents.Hash) (sink cell) {
	t := &s.tables[byHash]
	for _, hash := range hashes {
		sink ^= t.first(spread(uint64(hash)))
	}
	for _, hash := range hashes {
		p := t.probe(spread(uint64(hash)))
		if l := p.next(); l != 0 {
			sink ^= cell(s.records.at(l).holders)
		}
	}
	return sink
}

// aheadOfChains loads the cells that some digests lead to.
func (s *space) aheadOfChains(chains []digest) (sink cell) {
	t := &s.tables[byChain]
	for i := range chains {
		sink ^= t.first(spread(chains[i].lo))
	}
	return sink
}

// first returns the first cell that is looked at for a key.
func (t *table) first(k key) cell { return t.segment(k).cells[k&segmentMask] }
