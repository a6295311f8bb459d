package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// farPromises are what one lookup has counted on the cluster for.
type farPromises struct {
	glance  Glance // nil: it was not asked yet
	room    uint64
	counted digestSet
}

// faraway tells what is known of a chunk in the cluster that this node does not
// have. No more is promised than a load could have in memory at a time.
//
// REQUIRES: there is a cluster.
func (v *View) faraway(group uint32, hash *kv.Hash) kv.Existence {
	ns := v.m.namespaces[v.ns]
	if ns == nil || int(group) >= len(ns.groups) {
		return kv.Absent
	}
	if v.far.glance == nil {
		v.far.glance = v.m.lower.cluster.Glance(ns.digest)
		v.far.room = v.m.promiseBytes()
	}
	answer := v.far.glance.Exists(group, hash)
	if answer != kv.Present || v.far.counted.has(keyDigest(v.ns, group, hash)) {
		return answer
	}
	bytes := ns.groups[group].wholeBytes()
	if bytes > v.far.room {
		v.misses[MissCluster]++
		return kv.Absent
	}
	v.far.room -= bytes
	v.far.counted.add(keyDigest(v.ns, group, hash))
	return kv.Present
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

// add adds a digest. The digest 0 is in no set.
func (s *digestSet) add(digest uint64) {
	if 2*s.n >= len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(4*len(old), leastDigests))
		for _, d := range old {
			if d != 0 {
				s.slots[s.at(d)] = d
			}
		}
	}
	if i := s.at(digest); s.slots[i] == 0 {
		s.slots[i] = digest
		s.n++
	}
}

// has tells whether the digest is there.
func (s *digestSet) has(digest uint64) bool { return s.n > 0 && s.slots[s.at(digest)] != 0 }
