package prefixindex

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Storing and removing take their time from memory, not from computing: the cell of each
// hash is somewhere else, and so may its record be. Here what many keys lead to is loaded
// at once: loads that do not wait for each other take a fraction of the time.

// sight is what was found for a key when it was looked for ahead of its turn.
type sight struct {
	way   probe // behind the first record
	first link  // 0 for none
	used  uint16
	depth uint8
}

// ahead is the memory of who looks ahead.
type ahead struct {
	keys []key
	seen []sight
	// sink keeps loads that bring memory near from being left out.
	sink uint64
}

// aheadBytes are what a space's two take, about, with what else is in it.
const aheadBytes = 2*nearBlocks*96 + 2<<10

// look finds the first records of some keys.
func (t *table) look(a *ahead) {
	a.seen = slices.Grow(a.seen[:0], len(a.keys))[:len(a.keys)]
	for i, k := range a.keys {
		s := t.segment(k)
		a.seen[i].way.segment = s
		a.seen[i].used, a.seen[i].depth = s.used, s.depth
	}
	for i, k := range a.keys {
		s := a.seen[i].way.segment
		at := s.home(k)
		b := s.bucket(at)
		a.sink ^= b.tags
		// Field by field: to copy it whole takes longer than all the rest.
		way := &a.seen[i].way
		way.table, way.bucket, way.at, way.key = t, b, at, k
		way.tried, way.past = 0, 0
	}
	for i := range a.seen {
		way := &a.seen[i].way
		way.left = way.bucket.match(way.key.tag())
		a.seen[i].first = way.next()
	}
}

// from returns the first record of a key, and the way to the others: as it was seen, if
// nothing has changed there since.
func (t *table) from(seen *sight) (link, probe) {
	if s := seen.way.segment; s.used == seen.used && s.depth == seen.depth {
		return seen.first, seen.way
	}
	p := t.probe(seen.way.key)
	l := p.next()
	return l, p
}

// aheadBlocks are those of a query that are loaded at once where each has a cell.
const aheadBlocks = 32

// lookForHashes finds the first records of some hashes, and loads what is asked of them.
func (s *space) lookForHashes(hashes []kvevents.Hash, a *ahead) {
	a.keys = a.keys[:0]
	for _, hash := range hashes {
		a.keys = append(a.keys, s.keyOf(hash))
	}
	s.tables[byHash].look(a)
	for i := range a.seen {
		if l := a.seen[i].first; l != 0 {
			p, n := s.records.of(l)
			a.sink ^= uint64(p.hashes[n]) ^ uint64(p.holders[n]) ^ uint64(p.info[n])
		}
	}
}

// lookForChain finds the first records of some digests, and loads what a query asks of
// them.
func (s *space) lookForChain(chain []digest, a *ahead) {
	a.keys = a.keys[:0]
	for _, d := range chain {
		a.keys = append(a.keys, d.key())
	}
	s.tables[byChain].look(a)
	for i := range a.seen {
		if l := a.seen[i].first; l != 0 {
			p, n := s.records.of(l)
			a.sink ^= uint64(p.digests[n]) ^ uint64(p.holders[n]) ^ uint64(p.info[n])
		}
	}
}

// seeChain is lookForChain of one.
func (s *space) seeChain(d digest) *sight {
	a := &s.ahead[byChain]
	a.keys = append(a.keys[:0], d.key())
	s.tables[byChain].look(a)
	return &a.seen[0]
}
