package embedded

import "github.com/mooncake-sidecar/sidecar/store"

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
		if _, ok := m.evictLocked(RemovedEvicted, anyKind); !ok && !m.dropAnyLeavingLocked() {
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
	m.noteRemoval(why)
	r := m.seg.peekRecord(rec)
	listed := m.live[rec].state.Whole()
	m.dropped = age(m.clock.elapsed, m.lastUse[rec])
	m.moveTo(rec, Dropped)
	m.books.countChunk(ownerOf(&r), -1)
	m.leaveOrderLocked(rec, &r)
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
		m.unlistLocked(rec, &r, why)
	}
}

// dropCreatingLocked removes a chunk without shards: its puts end void.
func (m *Master) dropCreatingLocked(rec uint32) {
	r := m.seg.peekRecord(rec)
	m.moveTo(rec, Dropped)
	m.forgetLocked(rec, &r)
}

// forgetLocked takes a record out of the index and of all books, and frees its
// number as soon as nobody knows it. r is what it held.
//
// REQUIRES: the chunk is evicting.
func (m *Master) forgetLocked(rec uint32, r *record) {
	m.countPinLocked(r, -1)
	m.countDatedLocked(r.expires, -1)
	m.seg.voidRecord(rec) // before it leaves the index, see View
	m.table.Remove(keyDigest(store.NamespaceID(r.namespace), uint32(r.group), &r.hash), rec)
	m.faces.clear(rec, faceMissOnce|faceHidden|faceComing)
	m.seg.clearRecord(rec)
	if m.live[rec].away {
		m.loseLocked(rec)
	}
	l, g := &m.live[rec], m.groupOf(r)
	for range l.puts {
		m.books.giveSlot(ownerOf(r), g.slotBytes) // the writers hold them, for nothing
	}
	m.leases.bytes -= uint64(l.leases) * g.wholeBytes()
	*l = liveRecord{state: l.state, leases: l.leases, readers: l.readers, puts: l.puts}
	m.letGoLocked(rec)
}

// letGoLocked frees the number of a record that is void, if nobody knows it. To
// be called when a lease, a reader or a put of a record has ended.
func (m *Master) letGoLocked(rec uint32) {
	if l := &m.live[rec]; l.state == Evicting && !l.inUse() {
		m.moveTo(rec, Freed)
		*l = liveRecord{}
		m.free = append(m.free, rec)
	}
}
