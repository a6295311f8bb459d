package embedded

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/store"
)

// openPut is a granted put that has not ended.
type openPut struct {
	client    uint64
	namespace store.NamespaceID
	record    uint32
	slot      uint32
	shard     uint8
	// void: the chunk was reset or the master was replaced; the slot is held for
	// the writer until it ends or revokes the put, and the bytes count for nothing.
	void bool
}

// arrivalKey names a shard of a record. INVARIANT: it is in Master.arriving iff
// an open put that is not void brings the shard.
func arrivalKey(record uint32, shard uint8) uint64 { return uint64(record)<<8 | uint64(shard) }

func (p *openPut) arrivalKey() uint64 { return arrivalKey(p.record, p.shard) }

// PutStart grants places for items, in order.
func (m *Master) PutStart(session Session, n store.Namespace, items []store.PutItem) ([]store.PutGrant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.sessionLocked(session)
	if err != nil {
		return nil, err
	}
	ns, err := m.currentNamespaceLocked(n)
	if err != nil {
		return nil, err
	}
	// All are looked at before the first is granted: nobody would hear of that one.
	for i := range items {
		it := &items[i]
		if int(it.Group) >= len(ns.groups) || it.Shard >= store.MaxShards || ns.groups[it.Group].complete>>it.Shard&1 == 0 {
			return nil, fmt.Errorf("put of group %d shard %d: the namespace has no such shard", it.Group, it.Shard)
		}
	}
	grants := make([]store.PutGrant, len(items))
	full := map[uint32]bool{}
	for i := range items {
		grants[i] = m.grantPutLocked(c, n.ID, &ns.groups[items[i].Group], &items[i], full)
	}
	return grants, nil
}

// grantPutLocked answers one item. full has the slot sizes that this call found
// no room for: nothing frees any under the lock, and looking is slow.
func (m *Master) grantPutLocked(c *client, ns store.NamespaceID, g *groupInfo, it *store.PutItem, full map[uint32]bool) store.PutGrant {
	rec, known := m.findLocked(ns, it.Group, &it.Hash)
	if known {
		if m.live[rec].state >= livePartial {
			m.policyLocked(g.slotBytes).Touch(rec)
		}
		if m.live[rec].shards>>it.Shard&1 == 1 {
			m.stats.PutsExisting++
			return store.PutGrant{Status: store.PutExists}
		}
		if _, arriving := m.arriving[arrivalKey(rec, uint8(it.Shard))]; arriving {
			m.stats.PutsExisting++
			return store.PutGrant{Status: store.PutUnderway}
		}
	}
	if len(m.undeclared) > 0 {
		m.stats.PutsRefused++
		return store.PutGrant{Status: store.PutRefused}
	}
	if full[g.slotBytes] {
		m.stats.PutsNoSpace++
		return store.PutGrant{Status: store.PutNoSpace}
	}
	if known {
		// Making room must not evict the very chunk that the shard belongs to.
		m.live[rec].puts++
	}
	slot, ok := m.slotLocked(g.slotBytes)
	if ok && !known {
		if rec, ok = m.recordLocked(g.slotBytes); ok {
			m.live[rec].puts = 1
			m.openRecordLocked(rec, ns, it)
		} else {
			m.alloc.release(slot)
		}
	}
	if !ok {
		if known {
			m.live[rec].puts--
		} else {
			// For a known chunk it says less: that one is spared in the search.
			full[g.slotBytes] = true
		}
		m.stats.PutsNoSpace++
		return store.PutGrant{Status: store.PutNoSpace}
	}
	m.counter++
	ticket := uint64(slot)<<32 | uint64(m.counter)
	p := &openPut{client: c.id, namespace: ns, record: rec, slot: slot, shard: uint8(it.Shard)}
	m.puts[ticket] = p
	m.arriving[p.arrivalKey()] = struct{}{}
	m.stats.PutsGranted++
	return store.PutGrant{Status: store.PutGranted, Ticket: ticket, Place: store.Place{
		Offset: m.seg.slotOffset(slot, g.slotBytes), Bytes: g.shardBytes,
	}}
}

// openRecordLocked fills a new record; it stays invalid in the segment until a
// shard has arrived.
func (m *Master) openRecordLocked(rec uint32, ns store.NamespaceID, it *store.PutItem) {
	r := record{
		hash: it.Hash, namespace: uint16(ns), group: uint16(it.Group),
		depth: min(it.Depth, maxDepth), state: recFree, slot: noSlot,
	}
	if it.Depth > 0 {
		r.parent = keyDigest(ns, it.Group, &it.Parent)
	}
	m.seg.writeRecord(rec, &r)
	m.live[rec].state = liveStoring
	m.table.Insert(keyDigest(ns, it.Group, &it.Hash), rec)
}

// PutEnd publishes the shards of granted puts.
func (m *Master) PutEnd(session Session, commits []store.PutCommit) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.sessionLocked(session)
	if err != nil {
		return nil, err
	}
	done := make([]bool, len(commits))
	for i, commit := range commits {
		p := m.puts[commit.Ticket]
		if p == nil || p.client != c.id {
			continue
		}
		delete(m.puts, commit.Ticket)
		if p.void {
			m.alloc.release(p.slot)
			m.stats.PutsVoid++
			continue
		}
		m.publishLocked(p, commit.Checksum)
		done[i] = true
	}
	return done, nil
}

func (m *Master) publishLocked(p *openPut, checksum uint32) {
	r := m.seg.peekRecord(p.record)
	l := &m.live[p.record]
	l.puts--
	delete(m.arriving, p.arrivalKey())
	m.seg.writeSlot(p.slot, &slotEntry{checksum: checksum, next: r.slot, record: p.record, shard: p.shard})
	r.slot = p.slot
	l.shards |= 1 << p.shard
	first := l.state == liveStoring
	r.state, l.state = recPartial, livePartial
	if l.shards == m.namespaces[r.namespace].groups[r.group].complete {
		r.state, l.state = recActive, liveActive
	}
	m.seg.writeRecord(p.record, &r)
	if first {
		m.policyOfLocked(&r).Insert(p.record, evict.Chunk{Key: m.keyOfLocked(p.record), Parent: r.parent, Depth: r.depth})
	}
	if l.state == liveActive {
		m.stats.Chunks++
		m.feed.add(Change{Kind: Stored, Namespace: p.namespace, Group: uint32(r.group), Hash: r.hash, Parent: r.parent, Depth: r.depth})
	}
	m.stats.PutsEnded++
	m.stats.StoredBytes += uint64(m.namespaces[r.namespace].groups[r.group].shardBytes)
}

// PutRevoke gives granted places back.
func (m *Master) PutRevoke(session Session, tickets []uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.sessionLocked(session)
	if err != nil {
		return err
	}
	for _, ticket := range tickets {
		if p := m.puts[ticket]; p != nil && p.client == c.id {
			m.revokeLocked(ticket, p)
		}
	}
	return nil
}

func (m *Master) revokeLocked(ticket uint64, p *openPut) {
	delete(m.puts, ticket)
	m.voidPutLocked(p)
	m.alloc.release(p.slot)
	m.stats.PutsRevoked++
}

// voidPutLocked parts a put from its record; the slot stays with the writer.
func (m *Master) voidPutLocked(p *openPut) {
	if p.void {
		return
	}
	p.void = true
	delete(m.arriving, p.arrivalKey())
	l := &m.live[p.record]
	l.puts--
	if l.state == liveStoring && l.puts == 0 {
		m.forgetLocked(p.record)
	}
}
