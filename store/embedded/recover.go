package embedded

import (
	"fmt"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Recovery says what was found in an adopted segment.
type Recovery struct {
	Chunks     int // kept
	Dropped    int // records that were not whole
	Undeclared int // clients that may still copy
}

// Adopt takes over a segment whose master is gone. What was half written is
// dropped. No slot is handed out until every client that the segment names has
// opened a session and declared what it holds, or is dead.
func Adopt(mem Memory, opts Options) (*Master, Recovery, error) {
	layout, err := ReadLayout(mem.Bytes(), uint64(len(mem.Bytes())))
	if err != nil {
		return nil, Recovery{}, err
	}
	m := newMaster(mem, layout, opts.withDefaults())
	m.checkNodes()
	if m.opts.HugePages {
		m.adopted.from, m.adopted.to = pageOf(m.seg.recordsAt), m.seg.recordsEnd()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seg.setIncarnation(m.seg.incarnation() + 1)
	m.alloc.keepEmpty = true // until thawLocked
	// Numbers of this incarnation must not meet those of the last one.
	m.counter = m.seg.incarnation() << 24
	for i := range maxNamespaces {
		spec, err := m.seg.readNamespace(i)
		if err != nil {
			m.opts.Log.Warn("namespace of the adopted segment dropped", "error", err)
			continue
		}
		if spec != nil {
			m.addNamespaceLocked(i, spec)
		}
	}
	m.clock = resumeClock(m.opts.Now(), m.seg.clockValue(), m.seg.clockTime())
	m.adoptTagsLocked()
	m.checkSlabsLocked()
	var report Recovery
	m.readable.Store(m.seg.readyRecords())
	inUse := m.recoverRecordsLocked(&report)
	m.adoptOrderLocked()
	for id := uint32(0); id < m.seg.prepared(); {
		class := m.seg.slabClass(id)
		if class == 0 {
			m.alloc.addSlab(id)
			id++
			continue
		}
		m.alloc.restore(id, class, inUse[id])
		id += m.seg.runOf(class)
	}
	for i := range maxSessions {
		if e, used := m.seg.readClient(i); used {
			m.undeclared[e.client] = e
		}
	}
	report.Undeclared = len(m.undeclared)
	m.reapLocked()
	m.recovered = &report
	return m, report, nil
}

// checkSlabsLocked clears what can't be in the slab table: a size that no slots
// have, a run that goes beyond the memory or a NUMA node's, a size in the midst of a run.
func (m *Master) checkSlabsLocked() {
	behind := uint32(0) // slabs left of the run before
	for id := range m.seg.Slabs {
		class := m.seg.slabClass(id)
		sane := class != 0 && class >= m.seg.MinSlotBytes() && class%slotAlign == 0 && uint64(class) <= m.seg.MaxShardBytes() &&
			id+m.seg.runOf(class) <= m.seg.prepared() && m.alloc.sameHome(id, m.seg.runOf(class))
		switch {
		case behind > 0:
			behind--
			m.seg.setSlabClass(id, 0)
		case sane:
			behind = m.seg.runOf(class) - 1
		case class != 0:
			m.seg.setSlabClass(id, 0)
		}
	}
}

// recoverRecordsLocked rebuilds the index and returns the slots in use by slab.
func (m *Master) recoverRecordsLocked(report *Recovery) map[uint32][]uint32 {
	inUse := map[uint32][]uint32{}
	taken := map[uint32]bool{}
	for id := range m.seg.readyRecords() {
		r, ok := m.seg.readRecord(id)
		if !ok {
			continue
		}
		m.fresh = id + 1
		slots, shards, err := m.wholeChunkLocked(id, &r)
		if err == nil {
			if _, double := m.findLocked(store.NamespaceID(r.namespace), uint32(r.group), &r.hash); double {
				err = fmt.Errorf("another record has its hash")
			}
		}
		if err != nil {
			m.opts.Log.Debug("record of the adopted segment dropped", "record", id, "error", err)
			m.seg.clearRecord(id)
			report.Dropped++
			continue
		}
		for _, slot := range slots {
			taken[slot] = true
			inUse[slot/m.seg.SlotsPerSlab] = append(inUse[slot/m.seg.SlotsPerSlab], slot)
		}
		m.adoptChunkLocked(id, &r, shards)
		report.Chunks++
	}
	for id := range m.fresh {
		if m.live[id].state == Gone {
			m.seg.clearRecord(id)
			m.free = append(m.free, id)
		}
	}
	m.clearStraySlotsLocked(taken)
	return inUse
}

// adoptChunkLocked takes a chunk that was found whole, or with some shards, into
// the index, the policy and the books.
func (m *Master) adoptChunkLocked(id uint32, r *record, shards uint64) {
	m.live[id] = liveRecord{shards: uint8(bits.OnesCount64(shards))}
	if r.saltTag != 0 && (r.saltTag >= maxTags || m.tags[r.saltTag] == "") {
		r.saltTag = 0
		m.seg.setRecordLife(id, 0, r.flags, r.expires)
	}
	if r.state == recActive {
		m.moveTo(id, RecoveredWhole)
		m.stats.Chunks++
	} else {
		m.moveTo(id, RecoveredPart)
	}
	m.lastUse[id] = ticks(m.clock.elapsed)
	o := ownerOf(r)
	m.books.countChunk(o, 1)
	for range bits.OnesCount64(shards) {
		m.books.takeSlot(o, m.groupOf(r).slotBytes)
	}
	m.countPinLocked(r, 1)
	m.countDatedLocked(r.expires, 1)
	m.table.Insert(m.keyOfLocked(id), id)
	m.enterPolicyLocked(id, r)
}

// adoptTagsLocked reads the table of salt tags.
func (m *Master) adoptTagsLocked() {
	for i := uint16(1); i < maxTags; i++ {
		if tag := m.seg.readTag(i); tag != "" {
			m.tags[i], m.tagNumber[tag] = tag, i
			m.books.tags[i].quota = m.seg.tagQuota(i)
		}
	}
}

// wholeChunkLocked checks a record against its namespace and its slots, and
// returns which shards they hold. The list of slots ends at one that names its
// record, so that no two records can share any.
func (m *Master) wholeChunkLocked(id uint32, r *record) (slots []uint32, shards uint64, err error) {
	if int(r.namespace) >= maxNamespaces || m.namespaces[r.namespace] == nil {
		return nil, 0, fmt.Errorf("namespace %d is not known", r.namespace)
	}
	if uint32(r.generation) != m.generationOf(store.NamespaceID(r.namespace)) {
		return nil, 0, fmt.Errorf("namespace %d was reset", r.namespace)
	}
	ns := m.namespaces[r.namespace]
	if int(r.group) >= len(ns.groups) {
		return nil, 0, fmt.Errorf("group %d of %d", r.group, len(ns.groups))
	}
	g := ns.groups[r.group]
	for slot := r.slot; slot != noSlot; {
		if len(slots) == kv.MaxShards || slot/m.seg.SlotsPerSlab >= m.seg.prepared() {
			return nil, 0, fmt.Errorf("slot list leads astray at %d", slot)
		}
		e, ok := m.seg.readSlot(slot)
		class := m.seg.slabClass(slot / m.seg.SlotsPerSlab)
		if !ok || e.next == noSlot && e.record != id || class != g.slotBytes ||
			uint64(slot%m.seg.SlotsPerSlab+1)*uint64(class) > m.seg.runBytes(class) || shards>>e.shard&1 == 1 {
			return nil, 0, fmt.Errorf("slot %d does not fit", slot)
		}
		shards |= 1 << e.shard
		slots = append(slots, slot)
		slot = e.next
	}
	if shards == 0 || shards&^g.complete != 0 || (r.state == recActive) != (shards == g.complete) {
		return nil, 0, fmt.Errorf("slots hold shards %#x of %#x in state %d", shards, g.complete, r.state)
	}
	return slots, shards, nil
}

// clearStraySlotsLocked unmarks slots that no chunk counts as its own.
func (m *Master) clearStraySlotsLocked(taken map[uint32]bool) {
	for id := range m.seg.prepared() {
		class := m.seg.slabClass(id)
		if class == 0 {
			continue
		}
		for i := range uint32(m.seg.runBytes(class) / uint64(class)) {
			slot := id*m.seg.SlotsPerSlab + i
			if _, ok := m.seg.readSlot(slot); ok && !taken[slot] {
				m.seg.clearSlot(slot)
			}
		}
	}
}

// thawLocked frees the empty slabs of an adopted segment once no unknown writer
// can be in them.
func (m *Master) thawLocked() {
	m.adopting.Store(len(m.undeclared) > 0)
	if m.alloc.keepEmpty && len(m.undeclared) == 0 {
		m.alloc.retireEmpty()
	}
}
