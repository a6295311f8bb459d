package embedded

import "github.com/mooncake-sidecar/sidecar/internal/kv"

const (
	// aheadChunks is how many chunks' memory is fetched at a time.
	aheadChunks = 16
	// followChunks is how many are looked for in one run of records.
	followChunks = 32
)

// run is where a lookup's chunks stand in the record table. Those of a chain were
// mostly put one after the other, and their records have numbers in a row then.
type run struct {
	next    uint32 // the record behind the last chunk's
	known   bool   // there was a last chunk
	follows int    // of the chunks that were found last, how many were where the one before had them expected
	looked  int
}

// found takes note of a chunk's record.
func (r *run) found(record uint32) {
	r.looked++
	if r.known && record == r.next {
		r.follows++
	}
	r.next, r.known = record+1, true
}

// Ahead answers for as many chunks as it can at once, of those whose hashes stand
// one after the other: the first present of them are there, as Exists would say.
// For told of them, which may be more, it has brought into the cache what the
// probes will read. In an index that has been out of the cache that takes the
// greater part of a lookup's time away.
//
// Where the last chunks' records were in a row, the next ones are looked for
// there: memory that is read in order comes by itself, and it is one cache line a
// chunk instead of three. A record that has the chunk's identity is the chunk's,
// wherever its number is from; if one has not, the index is asked.
func (v *View) Ahead(group int, hashes kv.HashBlob, from int) (told, present int) {
	left := hashes.Len() - from
	if left <= 0 {
		return 0, 0
	}
	r := &v.run
	if v.missed == nil && 2*r.follows > r.looked {
		r.follows, r.looked = 0, 0
		present = v.follow(group, hashes, from, min(followChunks, left))
		if present == min(followChunks, left) {
			r.follows, r.looked = 1, 1
			return present, present
		}
	}
	n := min(aheadChunks, left-present)
	v.fetch(group, hashes, from+present, n)
	told = present + n
	if v.missed != nil {
		return told, present
	}
	r.follows, r.looked = 0, 0
	glanced := -1 // from which chunk on the cluster's glance was asked
	for ; present < told; present++ {
		hash := hashes.At(from + present)
		rec, seen, ok := v.m.find(v.ns, uint32(group), &hash)
		switch {
		case ok && seen.state == recActive && seen.faces == 0:
			r.found(rec)
			continue
		case ok || !v.onlyCluster():
			return told, present
		case glanced < 0:
			glanced = present
			v.glanceAhead(uint32(group), hashes, from+present, told-present)
		}
		if v.far.answers[present-glanced] != kv.Present {
			return told, present
		}
		v.far.counted.reserve(hashes.Len())
		if !v.promise(keyDigest(v.ns, uint32(group), &hash)) {
			return told, present
		}
	}
	return told, present
}

// onlyCluster tells whether there is a cluster below the memory, and nothing else.
func (v *View) onlyCluster() bool {
	return v.m.lower != nil && v.m.lower.cluster != nil && v.m.lower.tier == nil
}

// follow returns how many of n chunks are in the records that come next.
//
// What is read of such a record is one chunk's, and that was in the index when
// the first of it was read: a record that leaves is made void first, is then
// counted as departed, and is written anew only after that. So it is looked for
// the departures, then whether the record is a chunk, then whose, then for the
// departures again.
func (v *View) follow(group int, hashes kv.HashBlob, from, n int) int {
	m, first, length := v.m, v.run.next, hashes.HashLen()
	n = min(n, max(int(m.readable.Load())-int(first), 0)) // behind them is no memory
	for i := range n {
		m.seg.recordWord(first+uint32(i), wordScope) // all at once, then one by one
	}
	want := uint64(scopeOf(uint32(v.ns), m.generationOf(v.ns), uint32(group)))
	data := hashes.Bytes()[from*length:]
	var padded kv.Hash
	for i := range n {
		hash := &padded
		if length == len(kv.Hash{}) {
			hash = (*kv.Hash)(data[i*length:])
		} else {
			copy(padded[:], data[i*length:(i+1)*length])
		}
		if !m.isChunk(first+uint32(i), want, hash) {
			n = i
			break
		}
	}
	if n > 0 {
		v.run.next = first + uint32(n)
	}
	return n
}

// isChunk tells whether a record is that of a chunk which is whole and of which
// there is nothing else to know.
func (m *Master) isChunk(rec uint32, scope uint64, hash *kv.Hash) bool {
	departures := m.table.Departures(rec)
	word := m.seg.recordWord(rec, wordScope)
	return word&wordScopeMask == scope && stateOf(word) == recActive && m.seg.hasHash(rec, hash) &&
		m.faces.of(rec) == 0 && m.table.Departures(rec) == departures
}

// fetch brings what the index and the records have of n chunks into the cache.
func (v *View) fetch(group int, hashes kv.HashBlob, from, n int) {
	var keys [aheadChunks]uint64
	var likely [aheadChunks]uint32
	scope, length := scopeDigest(v.ns, uint32(group)), hashes.HashLen()
	data := hashes.Bytes()[from*length:]
	for i := range n {
		keys[i] = le.Uint64(data[i*length:]) ^ scope // keyDigest of hash i
	}
	v.m.table.Ahead(keys[:n], likely[:n])
	for _, record := range likely[:n] {
		if record != 0 {
			v.m.seg.recordWord(record-1, wordScope)
		}
	}
}
