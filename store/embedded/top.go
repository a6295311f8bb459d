package embedded

import (
	"cmp"
	"math"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store"
)

// maxTop bounds how many prefixes are told at once.
const maxTop = 1000

// countHitLocked counts a load of a chunk, once for all of its shards.
func (m *Master) countHitLocked(rec, shard uint32) {
	if shard == 0 && m.hits[rec] < math.MaxUint16 {
		m.hits[rec]++
	}
}

// named is a record and what it held when it was looked at: the number may be
// another chunk's by the time it is used.
type named struct {
	rec uint32
	key uint64
}

// usedChunk is a chunk that was loaded.
type usedChunk struct {
	named
	parent uint64
	depth  uint32
	hits   uint16
}

// TopPrefixes returns the n most used chains, the most used first. A chain ends
// where less than half of its uses go on: a system prompt that many requests
// begin with is one, and so is a conversation that comes back.
func (m *Master) TopPrefixes(n int) []Prefix {
	n = min(n, maxTop)
	if n <= 0 {
		return nil
	}
	var used []usedChunk
	for at, more := uint32(0), true; more; at += m.opts.steps.remove {
		m.betweenSteps()
		used, more = m.usedAt(used, at)
	}
	goesOn := map[uint64]uint16{} // by key: the most uses of a successor
	for i := range used {
		goesOn[used[i].parent] = max(goesOn[used[i].parent], used[i].hits)
	}
	ends := slices.DeleteFunc(used, func(u usedChunk) bool { return 2*uint32(goesOn[u.key]) >= uint32(u.hits) })
	slices.SortFunc(ends, func(a, b usedChunk) int {
		return cmp.Or(cmp.Compare(b.hits, a.hits), cmp.Compare(b.depth, a.depth), cmp.Compare(a.key, b.key))
	})
	ends = ends[:min(n, len(ends))]
	prefixes := make([]Prefix, 0, len(ends))
	for i := range ends {
		if p, ok := m.prefix(&ends[i]); ok {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

func (m *Master) usedAt(used []usedChunk, at uint32) ([]usedChunk, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	end := min(at+m.opts.steps.remove, m.fresh)
	for rec := at; rec < end; rec++ {
		if m.hits[rec] > 0 && m.live[rec].state.Whole() && !m.staleLocked(rec) {
			r := m.seg.peekRecord(rec)
			used = append(used, usedChunk{named: named{rec, m.keyOfLocked(rec)}, parent: r.parent, depth: r.depth, hits: m.hits[rec]})
		}
	}
	return used, end < m.fresh
}

// walkStep is how many chunks of a chain are passed at a time.
const walkStep = 256

// prefix walks from a chain's end to its beginning, a part at a time.
func (m *Master) prefix(end *usedChunk) (Prefix, bool) {
	var p Prefix
	// A chain has at most its depth of predecessors, whatever the records say.
	left := int(end.depth) + 1
	for at, more := end.named, true; more; left -= walkStep {
		at, more = m.walkSome(&p, at, min(left, walkStep))
		more = more && left > walkStep
	}
	p.Hits = uint64(end.hits)
	return p, p.Chunks > 0
}

// walkSome adds up to so many chunks of a chain, from one on towards the root, and
// returns the one behind them, if there is any.
func (m *Master) walkSome(p *Prefix, at named, most int) (named, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for range most {
		if !m.live[at.rec].state.Whole() || m.keyOfLocked(at.rec) != at.key {
			return named{}, false // it went meanwhile
		}
		r := m.seg.peekRecord(at.rec)
		if p.Chunks == 0 {
			p.Namespace, p.Group, p.Leaf = store.NamespaceID(r.namespace), uint32(r.group), r.hash
		}
		p.Chunks++
		p.Bytes += uint64(m.live[at.rec].shards) * uint64(m.groupOf(&r).slotBytes)
		if r.parent == 0 {
			p.Root = r.hash
			return named{}, false
		}
		parent, ok := m.table.Find(r.parent, func(id uint32) bool { return m.keyOfLocked(id) == r.parent && !m.staleLocked(id) })
		if !ok {
			return named{}, false
		}
		at = named{parent, r.parent}
	}
	return at, true
}
