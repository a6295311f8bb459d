package embedded

import (
	"cmp"
	"slices"
	"time"
)

const (
	// moveAtOnce bounds the bytes that are copied while the lock is held: about a
	// millisecond's.
	moveAtOnce = 8 << 20
)

// compactLocked moves chunks of a size that has a run's worth of free slots
// together, so that a run becomes free for others: a part of it at a time, and at
// the same home as long as there is room. While slabs are not scarce nobody needs
// those that are nearly empty. True: there is more to do.
func (m *Master) compactLocked() bool {
	if len(m.undeclared) > 0 || !m.alloc.scarce() {
		return false
	}
	for _, c := range m.alloc.classes {
		if c.slabs <= int(c.run) || m.alloc.spare(c) < uint64(m.alloc.perRun(c)) {
			continue
		}
		emptiest := m.alloc.emptiest(c)
		for _, id := range emptiest[:min(tries, len(emptiest))] {
			before := m.stats.SlotsMoved
			if m.idleRunLocked(id) && m.wholeRunLocked(id) {
				m.vacateLocked(id, moveAtOnce, false)
			}
			if m.stats.SlotsMoved > before {
				return true
			}
		}
	}
	return false
}

// wholeRunLocked tells whether all chunks of a run move. One that stays would keep
// the run from ever being empty, and what left it could come back the next time.
func (m *Master) wholeRunLocked(id uint32) bool {
	for i := range m.alloc.slabs[id].slots {
		if rec, ok := m.seg.ownerOf(id*m.seg.SlotsPerSlab + i); ok && m.live[rec].state != Active {
			return false
		}
	}
	return true
}

// vacateLocked moves chunks out of a run, those that were used last first, as
// long as the budget of bytes allows, and returns what is left of that. With drop, only
// chunks move that were used much later than the others of the run. What does not
// move is dropped, if drop says so, and stays otherwise. With drop, and where
// no disk is to have them first, colder chunks of the size make room for those
// that move.
//
// REQUIRES: with drop, idleRunLocked.
func (m *Master) vacateLocked(id uint32, budget int, drop bool) int {
	m.alloc.hold(id)
	defer m.alloc.unhold(id)
	s := &m.alloc.slabs[id]
	slotBytes := s.slotBytes
	slots, mean := m.slotsByUseLocked(id)
	for _, slot := range slots {
		rec, ok := m.seg.ownerOf(slot)
		if !ok {
			continue // it went with another shard, or made room
		}
		young := !drop || age(m.clock.elapsed, m.lastUse[rec]) < mean/2
		if young && budget >= int(slotBytes) && m.live[rec].state == Active && m.movableLocked(rec, slot) && m.placeForLocked(rec, slotBytes, drop && m.down() == nil) {
			if still, ok := m.seg.ownerOf(slot); ok && still == rec {
				m.moveSlotLocked(rec, slot)
				budget -= int(slotBytes)
			}
			continue
		}
		if drop {
			m.countLostLocked(rec, RemovedForSlab)
			m.dropLocked(rec, RemovedForSlab)
		}
	}
	return budget
}

// slotsByUseLocked returns the slots of a run's chunks, what was used last first,
// and how long ago that was on average.
func (m *Master) slotsByUseLocked(id uint32) (slots []uint32, mean time.Duration) {
	type use struct {
		slot uint32
		age  time.Duration
	}
	s := &m.alloc.slabs[id]
	uses := make([]use, 0, s.used)
	for i := range s.slots {
		slot := id*m.seg.SlotsPerSlab + i
		if rec, ok := m.seg.ownerOf(slot); ok {
			uses = append(uses, use{slot, age(m.clock.elapsed, m.lastUse[rec])})
		}
	}
	slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(a.age, b.age) })
	slots = make([]uint32, len(uses))
	for i := range uses {
		slots[i] = uses[i].slot
		mean += uses[i].age / time.Duration(len(uses))
	}
	return slots, mean
}

// placeForLocked tells whether a slot of the size is free outside of runs that
// are held. With evict it drops the policy's next of the size for one, until that
// is one that was used later than the chunk itself: then that one was the last.
func (m *Master) placeForLocked(rec, slotBytes uint32, evict bool) bool {
	c := m.alloc.classes[slotBytes]
	// Some of the coldest may be in the held run itself; they have to go anyway.
	for left := m.alloc.perRun(c) + heatSamples; !c.hasRoom(); left-- {
		if !evict || left == 0 {
			return false
		}
		// Not the chunk itself, nor one that is hotter.
		m.live[rec].leases++
		victim, ok := m.victimOfLocked(false, func(k *chunkKind) bool { return k.slotBytes == slotBytes })
		m.live[rec].leases--
		if !ok {
			return false
		}
		colder := m.lastUse[rec]-m.lastUse[victim] < 1<<31 && m.lastUse[rec] != m.lastUse[victim]
		m.countLostLocked(victim, RemovedForSlab)
		m.dropForgottenLocked(victim, RemovedForSlab)
		if !colder && !c.hasRoom() {
			return false
		}
	}
	return true
}

// moveSlotLocked copies a shard to a free slot of the same size. A master that
// dies on the way leaves the chunk as it was or not at all: its record's CRC
// covers the list of its slots.
//
// REQUIRES: nobody reads the slot, and the class has a free one that is not in
// the same run.
func (m *Master) moveSlotLocked(rec, from uint32) {
	r := m.seg.peekRecord(rec)
	slotBytes := m.alloc.slotBytes(from)
	to := m.alloc.move(m.alloc.classes[slotBytes], from)
	m.moveTo(rec, MoveBegun)
	data := m.seg.mem[m.seg.DataOffset:]
	source, target := m.seg.slotOffset(from, slotBytes), m.seg.slotOffset(to, slotBytes)
	copy(data[target:target+uint64(slotBytes)], data[source:source+uint64(slotBytes)])
	entry, _ := m.seg.readSlot(from)
	m.seg.writeSlot(to, &entry)
	if r.slot == from {
		r.slot = to
	} else {
		before, found := m.slotBeforeLocked(&r, from)
		if !found {
			panic("BUG: a chunk does not have its slot")
		}
		e, _ := m.seg.readSlot(before)
		e.next = to
		m.seg.writeSlot(before, &e)
	}
	m.seg.writeRecord(rec, &r)
	m.seg.clearSlot(from)
	m.alloc.release(from)
	m.moveTo(rec, MoveEnded)
	m.stats.SlotsMoved++
	m.stats.MovedBytes += uint64(slotBytes)
}

// slotBeforeLocked finds the slot whose next is the one.
func (m *Master) slotBeforeLocked(r *record, slot uint32) (uint32, bool) {
	for at := r.slot; at != noSlot; {
		e, ok := m.seg.readSlot(at)
		if !ok {
			break
		}
		if e.next == slot {
			return at, true
		}
		at = e.next
	}
	return 0, false
}
