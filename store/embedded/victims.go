package embedded

import (
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

func (m *Master) groupOf(r *record) *groupInfo { return &m.namespaces[r.namespace].groups[r.group] }

func ownerOf(r *record) owner { return owner{namespace: r.namespace, tag: r.saltTag} }

func (m *Master) kindOf(r *record) chunkKind {
	return chunkKind{slotBytes: m.groupOf(r).slotBytes, soft: r.flags&flagSoftPin != 0}
}

// wholeBytes is what all slots of a group's chunk take.
func (g *groupInfo) wholeBytes() uint64 {
	return uint64(g.slotBytes) * uint64(bits.OnesCount64(g.complete))
}

// enterPolicyLocked puts a chunk at the policy's disposal.
//
// INVARIANT: the policy knows the resident chunks that are neither pinned hard nor
// on their way down to the disk.
func (m *Master) enterPolicyLocked(rec uint32, r *record) {
	m.live[rec].kept = r.flags&flagHardPin != 0
	if !m.live[rec].kept && !m.live[rec].away {
		m.policy.Insert(rec, evict.Chunk{Key: m.keyOfLocked(rec), Parent: r.parent, Depth: r.depth, Class: m.kinds.enter(m.kindOf(r))})
	}
}

func (m *Master) leavePolicyLocked(rec uint32) {
	if !m.live[rec].kept && !m.live[rec].away {
		m.policy.Remove(rec)
		r := m.seg.peekRecord(rec)
		m.kinds.leave(m.kindOf(&r))
	}
}

// touchLocked notes a use of a resident chunk.
func (m *Master) touchLocked(rec uint32) {
	m.lastUse[rec] = ticks(m.clock.elapsed)
	m.owned.use(rec)
	switch l := &m.live[rec]; {
	case l.away:
		m.usedAwayLocked(rec)
	case !l.kept:
		m.policy.Touch(rec)
	}
}

// victimLocked takes the next chunk to go, of those whose kind matches, out of
// the policy. Leases that have run out are looked for before softly pinned
// chunks go.
func (m *Master) victimLocked(match func(*chunkKind) bool) (uint32, bool) {
	if rec, ok := m.victimOfLocked(false, match); ok {
		return rec, true
	}
	if expired, _ := m.expireLeasesLocked(); expired {
		if rec, ok := m.victimOfLocked(false, match); ok {
			return rec, true
		}
	}
	return m.victimOfLocked(true, match)
}

func (m *Master) victimOfLocked(soft bool, match func(*chunkKind) bool) (uint32, bool) {
	matches := func(k *chunkKind) bool { return k.soft == soft && match(k) }
	classes := m.kinds.among(matches)
	if classes == 0 {
		return 0, false
	}
	shared := classes>>sharedClass != 0
	rec, ok := m.policy.VictimOf(classes, func(rec uint32) bool {
		if l := &m.live[rec]; l.inUse() || l.sharing != 0 { // its slots would stay taken
			return true
		}
		if !shared {
			return false
		}
		r := m.seg.peekRecord(rec)
		k := m.kindOf(&r)
		return !matches(&k)
	})
	if ok {
		r := m.seg.peekRecord(rec)
		m.kinds.leave(m.kindOf(&r))
	}
	return rec, ok
}

// evictLocked drops the next chunk to go, of those whose kind matches.
func (m *Master) evictLocked(why RemoveReason, match func(*chunkKind) bool) (uint32, bool) {
	rec, ok := m.victimLocked(match)
	if !ok {
		return 0, false
	}
	m.stats.countAge(age(m.clock.elapsed, m.lastUse[rec]))
	m.countLostLocked(rec, why)
	m.dropForgottenLocked(rec, why)
	return rec, true
}

func anyKind(*chunkKind) bool { return true }
