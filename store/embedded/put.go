package embedded

import (
	"fmt"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/store"
)

// openPut is a granted put that has not ended.
type openPut struct {
	client    uint64
	namespace store.NamespaceID
	record    uint32
	slot      uint32
	shard     uint8
	// adopted: an earlier master granted it, and has its record; the slot is held
	// for the writer until it ends or revokes the put, and the bytes count for nothing.
	adopted bool
}

// voidLocked tells whether a put's bytes count for nothing: the chunk was dropped
// or reset, or the master was replaced. The slot is held for the writer until it
// ends or revokes the put.
func (m *Master) voidLocked(p *openPut) bool {
	return p.adopted || m.live[p.record].state == Evicting || m.staleLocked(p.record)
}

// arrivalKey names a shard of a record. INVARIANT: it is in Master.arriving iff
// an open put that was not adopted brings the shard.
func arrivalKey(record uint32, shard uint8) uint64 { return uint64(record)<<8 | uint64(shard) }

func (p *openPut) arrivalKey() uint64 { return arrivalKey(p.record, p.shard) }

// PutStart grants places for items, in order, of nobody in particular.
func (m *Master) PutStart(session Session, n store.Namespace, items []store.PutItem) ([]store.PutGrant, error) {
	return m.PutStartAs(session, n, &PutOptions{}, items)
}

// PutStartAs grants places for items, in order.
func (m *Master) PutStartAs(session Session, n store.Namespace, opts *PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	grants := make([]store.PutGrant, len(items))
	granted := 0
	err := m.inSteps(len(items), func(from, to int) error {
		c, err := m.sessionLocked(session)
		if err != nil {
			return err
		}
		ns, err := m.currentNamespaceLocked(n)
		if err != nil {
			return err
		}
		if from == 0 {
			// All are looked at before the first is granted: nobody would hear of that one.
			if err := ns.check(items); err != nil {
				return err
			}
		}
		call := m.putCallLocked(c, n.ID, opts)
		for ; granted < to; granted++ {
			grants[granted] = m.grantPutLocked(call, &ns.groups[items[granted].Group], &items[granted])
		}
		m.demoteAheadLocked(ns.groups)
		return nil
	})
	if err != nil && granted == 0 {
		return nil, err
	}
	for i := range grants[granted:] { // the namespace was reset, or the session is over
		grants[granted+i] = store.PutGrant{Status: store.PutRefused}
	}
	return grants, nil
}

// check refuses shards that the namespace does not have.
func (ns *namespace) check(items []store.PutItem) error {
	for i := range items {
		it := &items[i]
		if int(it.Group) >= len(ns.groups) || it.Shard >= store.MaxShards || ns.groups[it.Group].complete>>it.Shard&1 == 0 {
			return fmt.Errorf("%w: put of group %d shard %d; the namespace has no such shard", ErrOption, it.Group, it.Shard)
		}
	}
	return nil
}

// grantPutLocked answers one item.
func (m *Master) grantPutLocked(call *putCall, g *groupInfo, it *store.PutItem) store.PutGrant {
	rec, known := m.findLocked(call.namespace, it.Group, &it.Hash)
	if known {
		if m.live[rec].state.Resident() {
			m.touchLocked(rec)
			m.storedAgainLocked(rec, call.ttl)
		}
		if m.hasShardLocked(rec, it.Shard) {
			m.stats.PutsExisting++
			return store.PutGrant{Status: store.PutExists}
		}
		if _, arriving := m.arriving[arrivalKey(rec, uint8(it.Shard))]; arriving {
			m.stats.PutsExisting++
			return store.PutGrant{Status: store.PutUnderway}
		}
	}
	if call.refused != nil {
		*call.refused++
		return store.PutGrant{Status: store.PutRefused}
	}
	o := call.owner
	if known {
		o = m.ownerOfLocked(rec)
		// Making room must not evict the very chunk that the shard belongs to.
		m.live[rec].puts++
	}
	slot, refusal := m.roomLocked(call, o, g, known)
	if refusal == 0 && !known {
		var ok bool
		if rec, ok = m.recordLocked(); ok {
			m.live[rec].puts = 1
			m.openRecordLocked(rec, call, it)
		} else {
			m.alloc.release(slot)
			m.stats.PutsNoSpace++
			refusal = store.PutNoSpace
		}
	}
	if refusal != 0 {
		if known {
			m.live[rec].puts--
		}
		return store.PutGrant{Status: refusal}
	}
	m.books.takeSlot(o, g.slotBytes)
	m.counter++
	ticket := uint64(slot)<<32 | uint64(m.counter)
	p := &openPut{client: call.client.id, namespace: call.namespace, record: rec, slot: slot, shard: uint8(it.Shard)}
	m.puts[ticket] = p
	m.arriving[p.arrivalKey()] = struct{}{}
	m.stats.PutsGranted++
	return store.PutGrant{Status: store.PutGranted, Ticket: ticket, Place: store.Place{
		Offset: m.seg.slotOffset(slot, g.slotBytes), Bytes: g.shardBytes,
	}}
}

// hasShardLocked tells whether one of a namespace's shards of a chunk is present.
func (m *Master) hasShardLocked(rec, shard uint32) bool {
	switch l := &m.live[rec]; {
	case l.shards == 0:
		return false
	case l.state.Whole():
		return true
	}
	r := m.seg.peekRecord(rec)
	_, _, ok := m.slotOfLocked(&r, shard)
	return ok
}

// openRecordLocked fills a new record; it stays invalid in the segment until a
// shard has arrived.
func (m *Master) openRecordLocked(rec uint32, call *putCall, it *store.PutItem) {
	r := record{
		hash: it.Hash, namespace: uint16(call.namespace), generation: uint16(m.generationOf(call.namespace)), group: uint16(it.Group),
		depth: min(it.Depth, maxDepth), state: recFree, slot: noSlot,
		saltTag: call.owner.tag, flags: call.flags, expires: deadline(m.clock.elapsed, call.ttl),
	}
	if it.Depth > 0 {
		r.parent = keyDigest(call.namespace, it.Group, &it.Parent)
	}
	if bytes := m.groupOf(&r).wholeBytes(); r.flags&flagHardPin != 0 && m.pinned+bytes > m.pinBudgetLocked() {
		r.flags = flagSoftPin // the next best
		m.stats.PinsRefused++
	}
	m.countPinLocked(&r, 1)
	m.countDatedLocked(r.expires, 1)
	m.lastUse[rec], m.hits[rec] = ticks(m.clock.elapsed), 0
	m.live[rec].shared = 0
	m.seg.writeRecord(rec, &r)
	m.moveTo(rec, PutGranted)
	m.table.Insert(keyDigest(call.namespace, it.Group, &it.Hash), rec)
}

// PutEnd publishes the shards of granted puts.
func (m *Master) PutEnd(session Session, commits []store.PutCommit) ([]bool, error) {
	done := make([]bool, len(commits))
	begun := false
	err := m.inSteps(len(commits), func(from, to int) error {
		c, err := m.sessionLocked(session)
		if err != nil {
			return err
		}
		begun = true
		for i := from; i < to; i++ {
			done[i] = m.endPutLocked(c, commits[i])
		}
		return nil
	})
	if err != nil && !begun {
		return nil, err
	}
	return done, nil
}

func (m *Master) endPutLocked(c *client, commit store.PutCommit) bool {
	p := m.puts[commit.Ticket]
	if p == nil || p.client != c.id {
		return false
	}
	delete(m.puts, commit.Ticket)
	if m.voidLocked(p) {
		m.partPutLocked(p)
		m.alloc.release(p.slot)
		m.stats.PutsVoid++
		return false
	}
	if m.publishShardLocked(p, commit.Checksum) {
		m.shareLocked(p.record)
	}
	return true
}

// publishShardLocked makes a shard known, and tells whether the chunk is whole with it.
func (m *Master) publishShardLocked(p *openPut, checksum uint32) (whole bool) {
	r := m.seg.peekRecord(p.record)
	l := &m.live[p.record]
	l.puts--
	delete(m.arriving, p.arrivalKey())
	m.seg.writeSlot(p.slot, &slotEntry{checksum: checksum, next: r.slot, record: p.record, shard: p.shard})
	r.slot = p.slot
	l.shards++
	first := l.state == Creating
	whole = int(l.shards) == bits.OnesCount64(m.groupOf(&r).complete)
	r.state = recPartial
	if whole {
		r.state = recActive
	}
	m.seg.writeRecord(p.record, &r)
	if first {
		m.books.countChunk(ownerOf(&r), 1)
		m.enterPolicyLocked(p.record, &r)
		m.enterOrderLocked(p.record, &r)
	}
	if whole {
		m.moveTo(p.record, Completed)
		m.listLocked(p.record, &r)
	} else {
		m.moveTo(p.record, ShardArrived)
	}
	m.stats.PutsEnded++
	m.stats.StoredBytes += uint64(m.groupOf(&r).shardBytes)
	return whole
}

// PutRevoke gives granted places back.
func (m *Master) PutRevoke(session Session, tickets []uint64) error {
	return m.inSteps(len(tickets), func(from, to int) error {
		c, err := m.sessionLocked(session)
		if err != nil {
			return err
		}
		for _, ticket := range tickets[from:to] {
			if p := m.puts[ticket]; p != nil && p.client == c.id {
				m.revokeLocked(ticket, p)
			}
		}
		return nil
	})
}

func (m *Master) revokeLocked(ticket uint64, p *openPut) {
	delete(m.puts, ticket)
	m.partPutLocked(p)
	m.alloc.release(p.slot)
	m.stats.PutsRevoked++
}

// partPutLocked ends a put that brings nothing, but for its slot.
func (m *Master) partPutLocked(p *openPut) {
	if p.adopted {
		return
	}
	delete(m.arriving, p.arrivalKey())
	l := &m.live[p.record]
	l.puts--
	if l.state == Evicting {
		m.letGoLocked(p.record)
		return
	}
	m.books.giveSlot(m.ownerOfLocked(p.record), m.alloc.slotBytes(p.slot))
	if l.state == Creating && l.puts == 0 {
		r := m.seg.peekRecord(p.record)
		m.moveTo(p.record, PutsAbandoned)
		m.forgetLocked(p.record, &r)
	}
}
