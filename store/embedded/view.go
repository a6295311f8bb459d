package embedded

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// View answers the probes of one lookup. It takes no lock: it reads the index
// and the records while the master changes them, and each answer is right for
// some moment between question and answer. A chunk that is there all the while
// is never missed, and one that was never whole is never found; what goes
// between the answer and the load is the load's to report.
//
// A record is read word by word. What makes the words one record is the index:
// a record's identity is written before the record is in the index and changed
// after it has left it, and index.Table.Find believes nothing that was read of a
// record that left meanwhile. Whose it is and whether it is whole are in the
// same word.
//
// A record whose number was guessed is read without the index, see follow.
type View struct {
	m      *Master
	ns     store.NamespaceID
	run    run
	trail  trail
	missed []uint32 // records that this lookup was told are absent, once
	disk   promises
	far    farPromises
	misses [missReasons]uint32 // answers of this lookup
}

// View begins a lookup in the namespace.
func (m *Master) View(ns store.NamespaceID) *View {
	return &View{m: m, ns: ns}
}

// Lasting tells whether no chunk of the store has a deadline.
func (v *View) Lasting() bool { return v.m.dated.Load() == 0 }

// Exists tells whether every shard of a chunk can be loaded. A chunk whose load
// has failed is absent to the next lookup that meets it, and only to that one.
func (v *View) Exists(group int, hash kv.Hash) kv.Existence {
	rec, seen, ok := v.m.find(v.ns, uint32(group), &hash)
	if !ok || seen.state != recActive {
		return v.missing(uint32(group), &hash, ok, seen.faces)
	}
	if seen.faces != 0 || v.missed != nil {
		return v.disguised(uint32(group), &hash, rec, seen.faces)
	}
	return kv.Present
}

// disguised answers for a chunk that may be there and yet not for this lookup.
func (v *View) disguised(group uint32, hash *kv.Hash, rec uint32, faces face) kv.Existence {
	switch {
	case faces&faceHidden != 0:
		v.misses[MissExpired]++
		return kv.Absent
	case slices.Contains(v.missed, rec):
		v.misses[MissLoadFailed]++
		return kv.Absent
	case faces&faceMissOnce != 0 && v.m.faces.clear(rec, faceMissOnce):
		if now, _, ok := v.m.find(v.ns, group, hash); !ok || now != rec {
			// It went meanwhile, and the number may be another chunk's: whose failure it
			// was is not known, and one miss more is harmless.
			v.m.faces.set(rec, faceMissOnce)
		}
		v.misses[MissLoadFailed]++
		v.missed = append(v.missed, rec)
		return kv.Absent
	}
	return kv.Present
}

// missing answers for a chunk that memory has not got, or of which it has a part.
func (v *View) missing(group uint32, hash *kv.Hash, part bool, faces face) kv.Existence {
	if v.m.lower != nil {
		if found, told := v.lower(group, hash, part, faces); told {
			return found
		}
	}
	if part {
		v.misses[MissPartial]++
	} else {
		v.misses[MissAbsent]++
	}
	return kv.Absent
}

// lower answers for a chunk by what is below the memory, if that has anything to
// say. The cluster's is not promised while it would not be brought, see
// wantLocked.
func (v *View) lower(group uint32, hash *kv.Hash, part bool, faces face) (found kv.Existence, told bool) {
	late := v.misses[MissDisk] + v.misses[MissCluster]
	found = kv.Absent
	if v.m.lower.tier != nil {
		found = v.below(group, *hash)
	}
	if brought := !v.m.adopting.Load() && (!part || faces&faceComing != 0); found == kv.Absent && brought && v.m.lower.cluster != nil {
		found = v.faraway(group, *hash)
	}
	return found, found != kv.Absent || v.misses[MissDisk]+v.misses[MissCluster] > late
}

// Close ends the lookup.
func (v *View) Close() {
	v.m.misses.add(&v.misses)
	v.forget()
}

// Abandon ends a lookup that had no answer: nothing is counted, and the next one is
// told again what is told once. A record's number may be another chunk's by now: one
// miss more is harmless.
func (v *View) Abandon() {
	for _, rec := range v.missed {
		v.m.faces.set(rec, faceMissOnce)
	}
	for i := range v.disk.missed {
		v.m.lower.tier.MissOnce(&v.disk.missed[i])
	}
	v.forget()
}

func (v *View) forget() {
	v.missed, v.disk, v.far, v.misses = nil, promises{}, farPromises{}, [missReasons]uint32{}
}

// seen is what a lookup has seen of a record, at a moment when it was the chunk's.
type seen struct {
	state uint8 // as it stands in the segment
	faces face
}

// find returns the record of a chunk and what is to be seen of it. It may be
// called with or without the lock.
func (m *Master) find(ns store.NamespaceID, group uint32, hash *kv.Hash) (rec uint32, is seen, ok bool) {
	scope := uint64(scopeOf(uint32(ns), m.generationOf(ns), group))
	rec, ok = m.table.Find(keyDigest(ns, group, hash), func(id uint32) bool {
		word := m.seg.recordWord(id, wordScope)
		if word&wordScopeMask != scope || !m.seg.hasHash(id, hash) {
			return false
		}
		// Read here, so that the index vouches for all of it.
		is = seen{state: stateOf(word), faces: m.faces.of(id)}
		return true
	})
	return rec, is, ok
}
