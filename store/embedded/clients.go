package embedded

import (
	"fmt"
)

// Session names a store client's open session in every call. A number of an
// older session of the same client is refused.
type Session struct {
	Client uint64
	Number uint64
}

// client is a process that maps the segment.
type client struct {
	id     uint64
	number uint64 // the open session, 0: lost, but the process may still run
	line   int    // in the segment's session table
	entry  clientEntry
	// offered is how many references it was offered that are still open, offerBytes
	// what the messages that named them may take of its socket.
	offered, offerBytes int
}

// Declaration is what a client says it still holds when it opens a session.
type Declaration struct {
	Reads []uint64
	Puts  []uint64
}

// OpenSession begins a session of a client process, or takes up one that was
// lost, by this master or by the one before. What the client held and does not
// declare is given back; what it declares is held for it, though its puts are
// void if this master did not grant them.
func (m *Master) OpenSession(s Session, pid uint32, start uint64, held Declaration) error {
	if s.Client == 0 || s.Number == 0 {
		return fmt.Errorf("%w: client and session numbers must not be 0", ErrUnknownClient)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ownerLocked(s.Client, pid, start); err != nil {
		return err
	}
	c := m.clients[s.Client]
	if c == nil {
		line, err := m.clientLineLocked(s.Client)
		if err != nil {
			return err
		}
		c = &client{id: s.Client, line: line, entry: clientEntry{client: s.Client, pid: pid, start: start}}
		m.seg.writeClient(line, c.entry)
		m.clients[s.Client] = c
	}
	c.number = s.Number
	m.reconcileLocked(c, held)
	delete(m.undeclared, s.Client)
	m.thawLocked()
	return nil
}

// ownerLocked refuses a client number that another process has: what that one
// holds is not this one's to declare away.
func (m *Master) ownerLocked(id uint64, pid uint32, start uint64) error {
	e, known := m.undeclared[id]
	if c := m.clients[id]; c != nil {
		e, known = c.entry, true
	}
	if known && (e.pid != pid || e.start != start) {
		return fmt.Errorf("%w: client %x is process %d, not %d", ErrUnknownClient, id, e.pid, pid)
	}
	return nil
}

// clientLineLocked finds the client's line of the session table, or a free one.
func (m *Master) clientLineLocked(id uint64) (int, error) {
	free := -1
	for i := range maxSessions {
		e, used := m.seg.readClient(i)
		if used && e.client == id {
			return i, nil
		}
		if !used && free < 0 {
			free = i
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("store session refused: %d clients are the most", maxSessions)
	}
	return free, nil
}

func (m *Master) reconcileLocked(c *client, held Declaration) {
	reads := make(map[uint64]bool, len(held.Reads))
	for _, ref := range held.Reads {
		reads[ref] = true
		if _, known := m.reads[ref]; !known {
			m.adoptReadLocked(c, ref)
		}
	}
	for ref, r := range m.reads {
		if r.client == c.id && !reads[ref] {
			m.releaseLocked(ref, r)
		}
	}
	puts := make(map[uint64]bool, len(held.Puts))
	for _, ticket := range held.Puts {
		puts[ticket] = true
		if _, known := m.puts[ticket]; !known {
			m.adoptPutLocked(c, ticket)
		}
	}
	for ticket, p := range m.puts {
		if p.client == c.id && !puts[ticket] {
			m.revokeLocked(ticket, p)
		}
	}
}

// adoptReadLocked takes over a read that an earlier master granted.
func (m *Master) adoptReadLocked(c *client, ref uint64) {
	slot := uint32(ref >> 32)
	if !m.slotExistsLocked(slot) {
		return
	}
	r := openRead{client: c.id, slot: slot, orphan: true}
	switch rec, ok := m.seg.ownerOf(slot); {
	case ok && m.live[rec].state.Resident():
		// Whole or not: the chunk may have expired, or lost its other shards, since.
		if m.live[rec].readers < maxCount {
			r.record, r.orphan = rec, false
			m.live[rec].readers++
		}
	case m.pins[slot] == 0:
		if !m.alloc.claim(slot) {
			return
		}
		m.doomed[slot] = struct{}{}
	}
	m.pins[slot]++
	m.reads[ref] = r
}

// adoptPutLocked holds the slot of a put that an earlier master granted.
func (m *Master) adoptPutLocked(c *client, ticket uint64) {
	slot := uint32(ticket >> 32)
	if m.slotExistsLocked(slot) && m.alloc.claim(slot) {
		m.puts[ticket] = &openPut{client: c.id, slot: slot, adopted: true}
	}
}

func (m *Master) slotExistsLocked(slot uint32) bool {
	id := slot / m.seg.SlotsPerSlab
	return id < m.seg.Slabs && m.alloc.slabs[id].slotBytes != 0 && slot%m.seg.SlotsPerSlab < m.alloc.slabs[id].slots
}

// SessionLost notes that the client's connection has ended. Its process may
// still run and copy, so what it holds stays held until it opens a session
// again or is dead for certain (Reap).
func (m *Master) SessionLost(s Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[s.Client]; c != nil && c.number == s.Number {
		c.number = 0
	}
	m.reapLocked()
}

// Reap gives back what dead clients held. Call it now and then, and after a
// session was lost.
func (m *Master) Reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reapLocked()
	m.expireLeasesLocked() // Tick sees to the rest
}

func (m *Master) reapLocked() {
	for id, c := range m.clients {
		if c.number == 0 && !m.opts.Alive(c.entry.pid, c.entry.start) {
			m.reconcileLocked(c, Declaration{})
			m.seg.clearClient(c.line)
			delete(m.clients, id)
		}
	}
	for id, e := range m.undeclared {
		if !m.opts.Alive(e.pid, e.start) {
			if line, err := m.clientLineLocked(id); err == nil {
				m.seg.clearClient(line)
			}
			delete(m.undeclared, id)
		}
	}
	m.thawLocked()
}

func (m *Master) sessionLocked(s Session) (*client, error) {
	c := m.clients[s.Client]
	if c == nil || c.number != s.Number {
		return nil, fmt.Errorf("%w: client %x session %d", ErrUnknownClient, s.Client, s.Number)
	}
	return c, nil
}
