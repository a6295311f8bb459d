package embedded

import (
	"github.com/mooncake-sidecar/sidecar/store"
)

// openRead is a reference on one slot.
type openRead struct {
	client uint64
	slot   uint32
	record uint32
	// orphan: the record was not there any more when an earlier master's read was
	// declared.
	orphan bool
	// offered: the client did not ask for it, nor has it been given back. Then it
	// counts as read, of so many bytes, when it is released.
	offered *offering
	shard   uint32
	bytes   uint32
	kept    uint64 // its share of the bytes that it keeps from eviction
}

// Get takes a reference on each shard that is there, and renews the lease of
// the request that loads. A namespace of another segment is stale: its number
// may be another model's here.
func (m *Master) Get(session Session, n store.Namespace, lease store.Lease, items []store.GetItem) ([]store.GetResult, error) {
	results := make([]store.GetResult, len(items))
	for i := range results {
		results[i].Status = store.GetAbsent
	}
	begun := false
	check := func() (*client, error) {
		c, err := m.sessionLocked(session)
		if err == nil {
			_, err = m.currentNamespaceLocked(n)
		}
		return c, err
	}
	err := m.inSteps(len(items), func(from, to int) error {
		c, err := check()
		if err != nil {
			return err
		}
		if m.timeLocked(); !begun {
			m.renewLeaseLocked(lease)
			m.followers.of(lease.Engine, c.id).comeToSomething()
		}
		begun = true
		// Leaf first, so that the root ends as the most recently used.
		for i := len(items) - 1 - from; i >= len(items)-to; i-- {
			results[i] = m.getLocked(c, n.ID, &items[i])
		}
		return nil
	})
	if err != nil && !begun {
		return nil, err
	}
	m.betweenSteps()
	// What was not come to, because of a reset meanwhile, is absent. The first
	// chunk is brought up first.
	_ = m.inSteps(len(items), func(from, to int) error {
		c, err := check()
		if err == nil {
			m.loadMissingLocked(c, n.ID, items[from:to], results[from:to])
		}
		return err
	})
	return results, nil
}

func (m *Master) getLocked(c *client, ns store.NamespaceID, it *store.GetItem) store.GetResult {
	got, rec := m.referLocked(c, ns, it, nil)
	if got.Status != store.GetReady {
		m.stats.GetsAbsent++
		return got
	}
	m.touchLocked(rec)
	if it.Shard == 0 && m.sharesLocked(ns) { // not all that load have had a lease
		r := m.seg.peekRecord(rec)
		m.shareAgainLocked(rec, m.groupOf(&r).wholeBytes())
	}
	m.countReadLocked(rec, it.Shard, got.Place.Bytes)
	return got
}

// countReadLocked counts what a client has asked for, or used without asking.
func (m *Master) countReadLocked(rec, shard, bytes uint32) {
	m.countHitLocked(rec, shard)
	m.stats.GetsReady++
	m.stats.ReadBytes += uint64(bytes)
}

// referLocked takes a reference on a shard that is there, for a client that asks or
// one that it is offered to.
func (m *Master) referLocked(c *client, ns store.NamespaceID, it *store.GetItem, offered *offering) (store.GetResult, uint32) {
	absent := store.GetResult{Status: store.GetAbsent}
	if !m.hasGroupLocked(ns, it.Group) {
		return absent, 0
	}
	rec, ok := m.findLocked(ns, it.Group, &it.Hash)
	if !ok || !m.readableLocked(rec) || m.live[rec].readers == maxCount {
		return absent, 0
	}
	r := m.seg.peekRecord(rec)
	slot, entry, ok := m.slotOfLocked(&r, it.Shard)
	if !ok {
		return absent, 0
	}
	m.live[rec].readers++
	m.pins[slot]++
	m.counter++
	ref := uint64(slot)<<32 | uint64(m.counter)
	g := &m.namespaces[r.namespace].groups[r.group]
	read := openRead{client: c.id, slot: slot, record: rec, offered: offered, shard: it.Shard, bytes: g.shardBytes}
	if offered != nil {
		read.kept = g.wholeBytes() / uint64(offered.to.held)
		m.openedLocked(offered, read.kept)
	}
	m.reads[ref] = read
	return store.GetResult{
		Status: store.GetReady, Ref: ref, Checksum: entry.checksum, Tier: m.tierLocked(rec),
		Place: store.Place{Offset: m.seg.slotOffset(slot, g.slotBytes), Bytes: g.shardBytes},
	}, rec
}

// readableLocked tells whether a chunk may be loaded. One whose time is up may
// be as long as a lease holds it: a lookup has promised it.
func (m *Master) readableLocked(rec uint32) bool {
	l := &m.live[rec]
	return l.state.Whole() && !m.expiredLocked(rec) || l.state == Expired && l.leases > 0
}

// slotOfLocked walks the chunk's slots to a shard.
func (m *Master) slotOfLocked(r *record, shard uint32) (uint32, slotEntry, bool) {
	for slot := r.slot; slot != noSlot; {
		e, ok := m.seg.readSlot(slot)
		if !ok {
			break
		}
		if uint32(e.shard) == shard {
			return slot, e, true
		}
		slot = e.next
	}
	return 0, slotEntry{}, false
}

// Release drops references; unknown ones are ignored.
func (m *Master) Release(session Session, refs []uint64) error {
	return m.inSteps(len(refs), func(from, to int) error {
		c, err := m.sessionLocked(session)
		if err != nil {
			return err
		}
		for _, ref := range refs[from:to] {
			if r, ok := m.reads[ref]; ok && r.client == c.id {
				if r.offered != nil && !r.orphan {
					r.offered.to.comeToSomething()
					m.countReadLocked(r.record, r.shard, r.bytes)
				}
				m.releaseLocked(ref, r)
			}
		}
		return nil
	})
}

func (m *Master) releaseLocked(ref uint64, r openRead) {
	delete(m.reads, ref)
	if r.offered != nil {
		m.closedLocked(r.offered, r.kept)
	}
	if !r.orphan {
		m.live[r.record].readers--
		m.letGoLocked(r.record)
	}
	m.unpinLocked(r.slot)
}

// hasGroupLocked tells whether an open namespace has the group: a number beyond
// the record's 16 bits would be another group's.
func (m *Master) hasGroupLocked(ns store.NamespaceID, group uint32) bool {
	return int(group) < len(m.namespaces[ns].groups)
}

// ReportFailed makes chunks a miss once, or drops the corrupt ones.
func (m *Master) ReportFailed(session Session, n store.Namespace, chunks []store.FailedChunk) error {
	return m.inSteps(len(chunks), func(from, to int) error {
		if _, err := m.sessionLocked(session); err != nil {
			return err
		}
		if _, err := m.currentNamespaceLocked(n); err != nil {
			return err
		}
		m.reportLocked(n, chunks[from:to])
		return nil
	})
}

func (m *Master) reportLocked(n store.Namespace, chunks []store.FailedChunk) {
	for i := range chunks {
		if !m.hasGroupLocked(n.ID, chunks[i].Group) {
			continue
		}
		rec, ok := m.findLocked(n.ID, chunks[i].Group, &chunks[i].Hash)
		m.reportBelowLocked(n.ID, &chunks[i], ok && m.live[rec].state.Whole())
		if !ok || !m.live[rec].state.Resident() {
			continue
		}
		if chunks[i].Corrupt {
			m.stats.Corrupt++
			m.dropLocked(rec, RemovedCorrupt)
		} else {
			m.faces.set(rec, faceMissOnce)
		}
	}
}
