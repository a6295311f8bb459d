package embedded

import (
	"errors"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// A put needs its slots at once and a disk, or a cluster, takes its time, so chunks are written
// before their room is needed: when a slot size has less than a reserve left, the
// policy's next victims are handed to the tier. They stay in memory and are hit
// there (state migrating); once written they wait in line to be dropped, and are
// the first to go when a put finds no free slot. One that is used or pinned
// meanwhile goes back to the policy. When puts come faster than the disk takes
// chunks, the line is empty and the policy's victim is dropped as it would be
// without a disk. A chunk that is pinned softly is not written ahead: it is not its
// turn while there are others.

// move is a chunk on its way down.
//
// INVARIANT: the policy does not know the chunk (liveRecord.away); its slots are
// pinned while it is being written, as a reader's are.
type move struct {
	record  uint32
	slots   []uint32
	size    uint32 // of a slot
	writing bool
	// used: somebody wanted the chunk while it was being written.
	used bool
	// lost: it was dropped, or is back with the policy.
	lost bool
	// kept: it is on the disk.
	kept bool
}

const (
	// reserveShare bounds the reserve of a slot size as a part of its slots.
	reserveShare = 8
	// leastReserve are chunks, of which a slot size should have room for that many
	// unless that is half of what it has.
	leastReserve = 3
)

// demoteAheadLocked sees to it that the groups' slot sizes have their reserve.
func (m *Master) demoteAheadLocked(groups []groupInfo) {
	if m.down() == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		for m.reserveShortLocked(g) && m.lower.down.CanDemote(uint64(g.shardBytes)*uint64(bits.OnesCount64(g.complete))) {
			rec, ok := m.victimOfLocked(false, func(k *chunkKind) bool { return k.slotBytes == g.slotBytes })
			if !ok {
				break
			}
			m.demoteLocked(rec)
		}
	}
}

// reserveShortLocked tells whether fewer slots of the size are free, or about to
// be, than there should be.
func (m *Master) reserveShortLocked(g *groupInfo) bool {
	class := m.alloc.classes[g.slotBytes]
	if class == nil || class.slabs == 0 {
		return false
	}
	slots := uint64(class.slabs) * m.seg.SlabBytes / uint64(g.slotBytes)
	want := min(m.lower.down.QueueBytes()/uint64(g.slotBytes), slots/reserveShare)
	// A few chunks at least, of large ones too.
	want = max(want, min(leastReserve*uint64(bits.OnesCount64(g.complete)), slots/2))
	return m.alloc.spareSlots(g.slotBytes)+uint64(m.lower.spare[g.slotBytes]) < want
}

// spareSlots counts the free slots of a size, those of free slabs included.
func (a *slabAllocator) spareSlots(slotBytes uint32) uint64 {
	return uint64(a.freeSlabs())*(a.slabBytes/uint64(slotBytes)) + a.spare(a.classes[slotBytes])
}

// demoteLocked begins to move a chunk down that the policy has named and
// forgotten.
func (m *Master) demoteLocked(rec uint32) {
	r := m.seg.peekRecord(rec)
	l := &m.live[rec]
	if l.state != Active || m.expiredLocked(rec) || m.staleLocked(rec) {
		m.stats.countAge(age(m.clock.elapsed, m.lastUse[rec]))
		m.dropForgottenLocked(rec, RemovedEvicted)
		return
	}
	m.moveTo(rec, MoveBegun)
	l.away = true
	g := m.groupOf(&r)
	mv := &move{record: rec, size: g.slotBytes}
	m.lower.moves[rec] = mv
	chunk := m.chunkBelowLocked(&r, g)
	source, slots := m.shardsLocked(&r, g, &chunk)
	mv.slots = slots
	m.lower.spare[mv.size] += uint32(len(mv.slots))
	if _, there := m.lower.down.Look(&chunk.Key); there {
		m.lower.stats.Clean++
		m.lower.down.Touch(&chunk.Key) // it was in use until lately
		mv.kept = true
		m.lineUpLocked(mv)
		return
	}
	if r.expires != 0 {
		chunk.Expires = m.lower.down.Deadline(untilDeadline(m.clock.elapsed, r.expires))
	}
	if !m.lower.down.Demote(chunk, source, func(err error) { m.written(mv, err) }) {
		m.lineUpLocked(mv) // its turn to go has come all the same
		return
	}
	mv.writing = true
	for _, slot := range mv.slots {
		m.pins[slot]++
	}
}

// chunkBelowLocked describes a chunk to a tier below, without its checksums and the
// end of its time.
func (m *Master) chunkBelowLocked(r *record, g *groupInfo) disk.Chunk {
	chunk := disk.Chunk{Key: m.diskKeyOf(r), Depth: r.depth, Tag: m.tags[r.saltTag], ShardBytes: g.shardBytes}
	if r.parent != 0 {
		chunk.Parent = unscoped(r, r.parent)
	}
	return chunk
}

// shardsLocked lists a whole chunk's slots, checksums and bytes, by shard.
func (m *Master) shardsLocked(r *record, g *groupInfo, chunk *disk.Chunk) (source [][]byte, slots []uint32) {
	n := bits.OnesCount64(g.complete)
	source = make([][]byte, n)
	chunk.Checksums = make([]uint32, n)
	for slot := r.slot; slot != noSlot; {
		e, ok := m.seg.readSlot(slot)
		if !ok {
			break
		}
		slots = append(slots, slot)
		source[e.shard], chunk.Checksums[e.shard] = m.memoryOf(slot, g), e.checksum
		slot = e.next
	}
	return source, slots
}

// written ends the writing of a chunk. The tier calls it.
func (m *Master) written(mv *move, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mv.writing = false
	for _, slot := range mv.slots {
		m.unpinLocked(slot)
	}
	if err == nil {
		m.lower.stats.Demoted++
	}
	switch {
	case mv.lost:
	case errors.Is(err, disk.ErrSource):
		m.stats.Corrupt++
		m.dropLocked(mv.record, RemovedCorrupt)
	case mv.used || m.staysLocked(mv.record):
		m.comeBackLocked(mv)
	default:
		mv.kept = err == nil
		m.lineUpLocked(mv)
	}
}

func (m *Master) lineUpLocked(mv *move) {
	m.lower.leaving[mv.size] = append(m.lower.leaving[mv.size], mv)
}

// dropLeavingLocked drops the next chunk in line of a slot size.
func (m *Master) dropLeavingLocked(size uint32) bool {
	if m.lower == nil {
		return false
	}
	for line := m.lower.leaving[size]; len(line) > 0; line = m.lower.leaving[size] {
		mv := line[0]
		line[0] = nil
		m.lower.leaving[size] = line[1:]
		if len(line) == 1 {
			delete(m.lower.leaving, size)
		}
		switch {
		case mv.lost:
			continue
		case m.staysLocked(mv.record):
			m.comeBackLocked(mv)
			continue
		}
		why := RemovedDemoted
		if !mv.kept {
			why = RemovedEvicted
			m.lower.stats.Lost++
		}
		m.stats.countAge(age(m.clock.elapsed, m.lastUse[mv.record]))
		m.dropForgottenLocked(mv.record, why)
		return true
	}
	return false
}

// staysLocked tells whether a chunk on its way down is to stay after all: it is in
// use, or was pinned meanwhile.
func (m *Master) staysLocked(rec uint32) bool {
	flags, _ := m.seg.recordLife(rec)
	return m.live[rec].inUse() || flags&(flagSoftPin|flagHardPin) != 0
}

// dropAnyLeavingLocked drops the next chunk in line of some slot size.
func (m *Master) dropAnyLeavingLocked() bool {
	if m.lower == nil {
		return false
	}
	for size := range m.lower.leaving {
		if m.dropLeavingLocked(size) {
			return true
		}
	}
	return false
}

// usedAwayLocked notes a use of a chunk on its way down.
func (m *Master) usedAwayLocked(rec uint32) {
	if mv := m.lower.moves[rec]; mv.writing {
		mv.used = true
	} else {
		m.comeBackLocked(mv)
	}
}

// comeBackLocked gives a chunk back to the policy.
func (m *Master) comeBackLocked(mv *move) {
	rec := mv.record
	m.lower.stats.Returned++
	m.loseLocked(rec)
	if m.live[rec].state == Migrating {
		m.moveTo(rec, MoveEnded)
	}
	r := m.seg.peekRecord(rec)
	m.enterPolicyLocked(rec, &r)
}

// loseLocked parts a chunk from its way down.
func (m *Master) loseLocked(rec uint32) {
	mv := m.lower.moves[rec]
	mv.lost = true
	m.live[rec].away = false
	delete(m.lower.moves, rec)
	m.lower.spare[mv.size] -= uint32(len(mv.slots))
}

// countLostLocked counts a chunk that memory drops although the disk does not
// have it.
func (m *Master) countLostLocked(rec uint32, why RemoveReason) {
	if m.down() == nil || why != RemovedEvicted && why != RemovedForSlab || !m.live[rec].state.Whole() {
		return
	}
	r := m.seg.peekRecord(rec)
	key := m.diskKeyOf(&r)
	if _, there := m.lower.down.Look(&key); !there {
		m.lower.stats.Lost++
	}
}
