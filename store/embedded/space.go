package embedded

// slotLocked returns a slot of the size, near a home, evicting if it must.
func (m *Master) slotLocked(slotBytes uint32, near int) (uint32, bool) {
	for {
		if slot, ok := m.alloc.alloc(slotBytes, near); ok {
			return slot, true
		}
		if m.alloc.stuck {
			return 0, false // evicting would not help
		}
		dropped := m.dropLeavingLocked(slotBytes)
		if !dropped {
			_, dropped = m.evictLocked(RemovedEvicted, func(k *chunkKind) bool { return k.slotBytes == slotBytes })
		}
		if dropped {
			m.balanceLocked(slotBytes, near, m.dropped)
		} else if !m.takeSlabLocked(slotBytes, near) {
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
	m.dropped = age(m.clock.elapsed, m.lastUse[rec])
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
