package embedded

import (
	"cmp"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store"
)

// slotLocked returns a slot of the size, evicting if it must.
func (m *Master) slotLocked(slotBytes uint32) (uint32, bool) {
	for {
		if slot, ok := m.alloc.alloc(slotBytes); ok {
			return slot, true
		}
		if m.alloc.stuck {
			return 0, false // evicting would not help
		}
		if !m.evictLocked(slotBytes) && !m.takeSlabLocked(slotBytes) {
			return 0, false
		}
	}
}

// recordLocked returns a record number, evicting a chunk of the size if the
// table is full.
func (m *Master) recordLocked(slotBytes uint32) (uint32, bool) {
	for {
		if n := len(m.free); n > 0 {
			id := m.free[n-1]
			m.free = m.free[:n-1]
			return id, true
		}
		if id, ok := m.freshRecordLocked(); ok {
			return id, true
		}
		if !m.evictLocked(slotBytes) {
			return 0, false
		}
	}
}

// evictLocked evicts one chunk of the size class by policy.
func (m *Master) evictLocked(slotBytes uint32) bool {
	inUse := func(rec uint32) bool { return m.live[rec].inUse() }
	policy := m.policyLocked(slotBytes)
	rec, ok := policy.Victim(inUse)
	if !ok && m.expireLeasesLocked() {
		rec, ok = policy.Victim(inUse)
	}
	if !ok {
		return false
	}
	m.dropForgottenLocked(rec, RemovedEvicted)
	return true
}

// takeSlabLocked frees a slab of the class that has most of them, or of the next
// one if all of its slabs are in use, so that a class that came late, or grew,
// gets memory. All chunks of the slab go.
func (m *Master) takeSlabLocked(slotBytes uint32) bool {
	var donors []*sizeClass
	for _, c := range m.alloc.classes {
		if c.slotBytes != slotBytes && c.slabs > 0 {
			donors = append(donors, c)
		}
	}
	slices.SortFunc(donors, func(a, b *sizeClass) int {
		return cmp.Or(cmp.Compare(b.slabs, a.slabs), cmp.Compare(a.slotBytes, b.slotBytes))
	})
	for _, donor := range donors {
		for id := range m.alloc.slabs {
			if m.alloc.slabs[id].slotBytes == donor.slotBytes && m.emptySlabLocked(uint32(id)) {
				return true
			}
		}
	}
	return false
}

// emptySlabLocked evicts every chunk with a slot in the slab, unless one of them
// is in use.
func (m *Master) emptySlabLocked(id uint32) bool {
	s := &m.alloc.slabs[id]
	var victims []uint32
	for i := range s.slots {
		if rec, ok := m.seg.ownerOf(id*m.seg.SlotsPerSlab + i); ok {
			if m.live[rec].inUse() {
				return false
			}
			victims = append(victims, rec)
		}
	}
	if uint32(len(victims)) != s.used {
		return false // an open put, or a doomed slot that is still read
	}
	for _, rec := range victims {
		if m.live[rec].state >= livePartial { // a chunk may have two shards here
			m.dropLocked(rec, RemovedEvicted)
		}
	}
	return true
}

// dropLocked removes a chunk that the policy still knows.
//
// REQUIRES: the record is partial or active.
func (m *Master) dropLocked(rec uint32, why RemoveReason) {
	r := m.seg.peekRecord(rec)
	m.policyOfLocked(&r).Remove(rec)
	m.dropForgottenLocked(rec, why)
}

// dropForgottenLocked removes a chunk that the policy has forgotten. Its slots
// are reused when nobody reads them any more. The record becomes invalid first,
// so that a crash in between frees the slots and not half a chunk.
func (m *Master) dropForgottenLocked(rec uint32, why RemoveReason) {
	r := m.seg.peekRecord(rec)
	wasActive := m.live[rec].state == liveActive
	if m.live[rec].puts > 0 {
		for _, p := range m.puts {
			if p.record == rec && !p.void {
				p.void = true
				delete(m.arriving, p.arrivalKey())
				m.live[rec].puts--
			}
		}
	}
	if m.live[rec].readers > 0 {
		for ref, read := range m.reads {
			if read.record == rec && !read.orphan {
				read.orphan = true
				m.reads[ref] = read
			}
		}
	}
	if m.live[rec].leases > 0 {
		m.leases.dropRecord(rec)
	}
	m.forgetLocked(rec)
	for slot := r.slot; slot != noSlot; {
		e, ok := m.seg.readSlot(slot)
		m.seg.clearSlot(slot)
		if m.pins[slot] > 0 {
			m.doomed[slot] = struct{}{}
		} else {
			m.alloc.release(slot)
		}
		if !ok {
			break
		}
		slot = e.next
	}
	if wasActive {
		m.stats.Chunks--
		m.stats.Removed[why]++
		m.feed.add(Change{Kind: Removed, Reason: why, Namespace: store.NamespaceID(r.namespace), Group: uint32(r.group), Hash: r.hash, Parent: r.parent, Depth: r.depth})
	}
}

// forgetLocked frees a record number.
func (m *Master) forgetLocked(rec uint32) {
	m.table.Remove(m.keyOfLocked(rec), rec)
	m.faces.clear(rec, faceMissOnce|faceHidden)
	m.seg.clearRecord(rec)
	m.live[rec] = liveRecord{}
	m.free = append(m.free, rec)
}
