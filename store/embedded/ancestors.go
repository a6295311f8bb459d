package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

const (
	// strayFinds and strayShare bound what a chain may cost whose records are not
	// where they are expected: so many looks into the index, and one more for so many
	// records that were. Each is a wait for memory that the next one hangs on, so that
	// whoever has the hashes does better to ask for them one beside the other.
	strayFinds = 32
	strayShare = 8
)

// trail is where the records of a chain are: going back by one chunk changes the
// record's number by back, as far as is known.
type trail struct {
	group  int
	record uint32 // of the hash at index
	index  int
	back   int
	jump   int // what it changed by the last time, if that was another number
	known  bool
	found  int // chunks, of which
	strays int // were looked for in the index
}

// ancestor is what a record tells of a chunk.
type ancestor struct {
	parent uint64 // key digest of the one before it
	whole  bool   // and there is nothing else to know of it
}

// Ancestors finds out the hashes of the chunks that come before one in its chain.
// The chunk is group's with the hash at index at of the hashes in data, of length
// bytes each; those before it have theirs step apart, and count of them are looked
// for. It writes found of them into data, the nearest first. Of these and the chunk
// itself, present are there, as Exists would say: the nearest, without a gap.
// stray: there may be more, but they cost too much to be looked for, or the chunk is
// not in memory and may be below it, where nobody knows what comes before it.
//
// A hash commits to all before it, and a record has the first eight bytes of the
// hash of the chunk before. So the chain is the chunk's own, unless a client has put
// chunks under forged hashes or parents.
//
// INVARIANT: a chain that is wrong all the same, torn or forged, costs a hit and no
// byte: what is written into data is only a hash that a question could have named
// itself. A load names its hashes in full, and is given these chunks or none.
//
// REQUIRES: the hash at index at-(count+1)*step, if there is such an index, is in
// data too.
func (v *View) Ancestors(group int, data []byte, length, at, step, count int) (found, present int, stray bool) {
	t := &v.trail
	if t.known && t.group != group {
		*t = trail{}
	}
	m, scope, digest := v.m, uint64(scopeOf(uint32(v.ns), v.m.generationOf(v.ns), uint32(group))), scopeDigest(v.ns, uint32(group))
	rec, of, ok := v.beginTrail(group, scope, digest, data, length, at, step)
	if !ok {
		return 0, 0, v.mayBeBelow(uint32(group), data[at*length:(at+1)*length])
	}
	readable := int64(m.readable.Load())
	whole := v.missed == nil
	for {
		if whole = whole && of.whole; whole {
			present++
		}
		if found == count || of.parent == 0 {
			break
		}
		to := data[(at-(found+1)*step)*length:][:length]
		next := int64(rec) + int64(t.back)
		ok = next >= 0 && next < readable
		before := of
		if ok {
			of, ok = m.ancestorAt(uint32(next), scope, digest, before.parent, to)
		}
		if ok {
			t.jump = 0
		} else {
			if t.strays > strayFinds+t.found/strayShare {
				stray = true
				break
			}
			t.strays++
			var other uint32
			if other, of, ok = m.ancestorOf(scope, digest, before.parent, to); !ok {
				break
			}
			next = int64(other)
			if jump := int(next - int64(rec)); jump == t.jump {
				t.back = jump // twice in a row: chunks of other groups stand between
			} else {
				t.jump = jump
			}
		}
		rec = uint32(next)
		found++
	}
	t.found += found
	if first := at - (found+1)*step; found == count && first >= 0 && le.Uint64(data[first*length:])^digest != of.parent {
		return 0, 0, false // not the chain that the question is about
	}
	return found, present, stray
}

// beginTrail finds the record that a trail begins with: where the last one has it
// expected, or by the index. scope and digest are the group's.
func (v *View) beginTrail(group int, scope, digest uint64, data []byte, length, at, step int) (rec uint32, of ancestor, ok bool) {
	t, m := &v.trail, v.m
	var hash kv.Hash
	copy(hash[:], data[at*length:(at+1)*length])
	key := le.Uint64(hash[:]) ^ digest
	var got kv.Hash
	if next := int64(t.record) + int64(t.index-at)/int64(step)*int64(t.back); t.known && next >= 0 && next < int64(m.readable.Load()) {
		if of, ok = m.ancestorAt(uint32(next), scope, digest, key, got[:length]); ok && got == hash {
			rec = uint32(next)
		} else {
			ok = false
		}
	}
	if !ok {
		if rec, of, ok = m.ancestorOf(scope, digest, key, got[:length]); !ok || got != hash {
			return 0, ancestor{}, false
		}
	}
	if !t.known {
		t.back = -1 // chunks are mostly put one after the other
	}
	t.group, t.record, t.index, t.known = group, rec, at, true
	return rec, of, true
}

// mayBeBelow tells whether a chunk that memory has not got is below it, or has to be asked
// for there. Whoever is told so asks once more, which counts what there is to count.
func (v *View) mayBeBelow(group uint32, hash []byte) bool {
	if v.m.lower == nil {
		return false
	}
	var padded kv.Hash
	copy(padded[:], hash)
	misses := v.misses
	found, _ := v.lower(group, &padded, false, 0)
	v.misses = misses
	return found != kv.Absent
}

// ancestorAt reads a record, if it is that of a chunk with that key, and writes the
// chunk's hash to the bytes given. See follow for why what it reads is one chunk's.
func (m *Master) ancestorAt(rec uint32, scope, digest, key uint64, hash []byte) (of ancestor, ok bool) {
	departures := m.table.Departures(rec)
	of, ok = m.readAncestor(rec, scope, digest, key, hash)
	return of, ok && m.table.Departures(rec) == departures
}

// ancestorOf is ancestorAt of a record that the index knows.
func (m *Master) ancestorOf(scope, digest, key uint64, hash []byte) (rec uint32, of ancestor, ok bool) {
	rec, ok = m.table.Find(key, func(id uint32) (is bool) {
		of, is = m.readAncestor(id, scope, digest, key, hash)
		return is
	})
	return rec, of, ok
}

func (m *Master) readAncestor(rec uint32, scope, digest, key uint64, hash []byte) (of ancestor, ok bool) {
	w := m.seg.records[int(rec)*recordWords:][:recordWords]
	word := w[wordScope].Load()
	if word&wordScopeMask != scope || stateOf(word) == recFree || w[0].Load()^digest != key {
		return ancestor{}, false
	}
	if len(hash) == len(kv.Hash{}) {
		for i := range 4 {
			le.PutUint64(hash[8*i:], w[i].Load())
		}
	} else {
		var padded kv.Hash
		for i := range 4 {
			le.PutUint64(padded[8*i:], w[i].Load())
		}
		copy(hash, padded[:])
	}
	return ancestor{parent: w[wordParent].Load(), whole: stateOf(word) == recActive && m.faces.of(rec) == 0}, true
}
