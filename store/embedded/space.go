package embedded

import (
	"cmp"
	"slices"
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
		if m.dropLeavingLocked(slotBytes) {
			continue
		}
		if _, ok := m.evictLocked(RemovedEvicted, func(k *chunkKind) bool { return k.slotBytes == slotBytes }); !ok && !m.takeSlabLocked(slotBytes) {
			return 0, false
		}
	}
}

// recordLocked returns a record number, evicting a chunk if the table is full.
func (m *Master) recordLocked() (uint32, bool) {
	for {
		if n := len(m.free); n > 0 {
			id := m.free[n-1]
			m.free = m.free[:n-1]
			return id, true
		}
		if id, ok := m.freshRecordLocked(); ok {
			return id, true
		}
		if _, ok := m.evictLocked(RemovedEvicted, anyKind); !ok {
			return 0, false
		}
	}
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
			if m.live[rec].inUse() || m.live[rec].kept || m.pins[id*m.seg.SlotsPerSlab+i] > 0 {
				return false
			}
			victims = append(victims, rec)
		}
	}
	if uint32(len(victims)) != s.used {
		return false // an open put, or a doomed slot that is still read
	}
	for _, rec := range victims {
		if m.live[rec].state.Resident() { // a chunk may have two shards here
			m.countLostLocked(rec, RemovedForSlab)
			m.dropLocked(rec, RemovedForSlab)
		}
	}
	return true
}

// dropLocked removes a chunk that the policy still knows, if it may.
//
// REQUIRES: the chunk is resident.
func (m *Master) dropLocked(rec uint32, why RemoveReason) {
	m.leavePolicyLocked(rec)
	m.dropForgottenLocked(rec, why)
}

// dropForgottenLocked removes a chunk that the policy has forgotten. Its slots
// are reused when nobody reads them any more. The record becomes invalid first,
// so that a crash in between frees the slots and not half a chunk.
func (m *Master) dropForgottenLocked(rec uint32, why RemoveReason) {
	r := m.seg.peekRecord(rec)
	listed := m.live[rec].state.Whole()
	m.moveTo(rec, Dropped)
	if m.live[rec].puts > 0 {
		for _, p := range m.puts {
			if p.record == rec {
				m.voidPutLocked(p)
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
	m.books.countChunk(ownerOf(&r), -1)
	m.forgetLocked(rec, &r)
	for slot := r.slot; slot != noSlot; {
		e, ok := m.seg.readSlot(slot)
		m.seg.clearSlot(slot)
		m.books.giveSlot(ownerOf(&r), m.alloc.slotBytes(slot))
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
	if listed {
		m.unlistLocked(&r, why)
	}
}

// forgetLocked frees a record number. r is what it held.
func (m *Master) forgetLocked(rec uint32, r *record) {
	m.countPinLocked(r, -1)
	m.countDatedLocked(r.expires, -1)
	m.moveTo(rec, Freed)
	m.table.Remove(m.keyOfLocked(rec), rec)
	m.faces.clear(rec, faceMissOnce|faceHidden)
	m.seg.clearRecord(rec)
	if m.live[rec].away {
		m.loseLocked(rec)
	}
	m.live[rec] = liveRecord{}
	m.free = append(m.free, rec)
}
