package embedded

import (
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// farPromises are what one lookup has counted on the cluster for.
type farPromises struct {
	glance  Glance // nil: it was not asked yet
	bytes   uint64 // of a chunk of the group that is looked for
	room    uint64
	counted digestSet
	// hash and answers are what the glance is given the address of, here and not on
	// anybody's stack, from which each would have to be moved.
	hash    kv.Hash
	answers [aheadChunks]kv.Existence
}

// faraway tells what is known of a chunk in the cluster that this node does not
// have.
//
// REQUIRES: there is a cluster.
func (v *View) faraway(group uint32, hash kv.Hash) kv.Existence {
	if !v.beginFar(group) {
		return kv.Absent
	}
	v.far.hash = hash
	answer := v.far.glance.Exists(group, &v.far.hash)
	if answer == kv.Present && !v.promise(keyDigest(v.ns, group, &hash)) {
		v.misses[MissCluster]++
		return kv.Absent
	}
	return answer
}

// glanceAhead has the glance's answers for n chunks in a row, at most aheadChunks.
//
// REQUIRES: there is a cluster.
func (v *View) glanceAhead(group uint32, hashes kv.HashBlob, from, n int) {
	answers := v.far.answers[:n]
	if v.m.adopting.Load() || !v.beginFar(group) {
		clear(answers) // kv.Absent
		return
	}
	v.far.glance.Ahead(group, hashes, from, answers)
}

// beginFar begins to look for a group's chunks in the cluster. False: there is no such
// group.
func (v *View) beginFar(group uint32) bool {
	ns := v.m.namespaces[v.ns]
	if ns == nil || int(group) >= len(ns.groups) {
		return false
	}
	if v.far.glance == nil {
		v.far.glance = v.m.lower.cluster.Glance(ns.digest)
		v.far.room = v.m.promiseBytes()
	}
	v.far.bytes = ns.groups[group].wholeBytes()
	return true
}

// promise counts on the cluster for a chunk of the group that was begun with, once.
// False: no more is promised than a load could have in memory at a time.
func (v *View) promise(digest uint64) bool {
	switch {
	case v.far.bytes > v.far.room:
		return v.far.counted.has(digest)
	case v.far.counted.add(digest):
		v.far.room -= v.far.bytes
	}
	return true
}

// digestSet is a set of key digests: open addressing, half full at most. The zero
// set is empty.
type digestSet struct {
	slots []uint64 // 0 is free
	n     int
}

const leastDigests = 256

// at returns where a digest is, or would be.
func (s *digestSet) at(digest uint64) int {
	mask := len(s.slots) - 1
	i := int(digest>>17) & mask
	for s.slots[i] != 0 && s.slots[i] != digest {
		i = (i + 1) & mask
	}
	return i
}

// reserve makes room for so many digests, in a set that has none yet.
func (s *digestSet) reserve(n int) {
	if s.slots == nil {
		s.slots = make([]uint64, 1<<bits.Len(uint(max(2*n, leastDigests)-1)))
	}
}

// add adds a digest, and reports whether it was not there. The digest 0 is in no set.
func (s *digestSet) add(digest uint64) bool {
	if 2*s.n >= len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(4*len(old), leastDigests))
		for _, d := range old {
			if d != 0 {
				s.slots[s.at(d)] = d
			}
		}
	}
	i := s.at(digest)
	if s.slots[i] == digest {
		return false
	}
	s.slots[i] = digest
	s.n++
	return true
}

// has tells whether the digest is there.
func (s *digestSet) has(digest uint64) bool {
	return s.n > 0 && s.slots[s.at(digest)] == digest && digest != 0
}
