package embedded

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// sweepRecords is how many records one Tick looks at for their time.
const sweepRecords = 2 << 10

// leasedAgain is when a chunk whose time is up and that is leased is looked at
// again.
const leasedAgain = 10 * time.Second

// Tick does a bounded part of what is due: leases, pins and chunks whose time is
// up, and moving chunks together. True: there is more to do at once. Call it
// about every second.
func (m *Master) Tick() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.timeLocked()
	m.seg.setClock(now, m.clock.last)
	m.noteCleanLocked()
	_, more := m.expireLeasesLocked()
	more = m.sweepLocked(now) || more
	more = m.sweepStaleLocked() || more
	more = m.keepQuotasLocked() || more
	return m.compactLocked() || more
}

// sweepLocked looks at the next records for those whose time is up. In between
// rounds it waits for the earliest deadline that the last one has seen.
func (m *Master) sweepLocked(now time.Duration) bool {
	if m.dated.Load() == 0 || m.sweepAt == 0 && !passed(now, m.nextDue) {
		return false
	}
	if m.sweepAt == 0 {
		m.nextDue = 0
	}
	end := min(m.sweepAt+sweepRecords, m.fresh)
	for rec := m.sweepAt; rec < end; rec++ {
		state := m.live[rec].state
		if state == Gone {
			continue
		}
		_, expires := m.seg.recordLife(rec)
		if expires == 0 {
			continue
		}
		// The time of one that is being created is noted and looked at again.
		if passed(now, expires) && state.Resident() {
			expires = m.timeUpLocked(rec, now)
		}
		m.dueLocked(expires)
	}
	m.sweepAt = end
	if end == m.fresh {
		m.sweepAt = 0
	}
	return m.sweepAt != 0
}

// dueLocked notes a deadline for the next round of the sweep; 0 is none.
func (m *Master) dueLocked(expires uint32) {
	if expires != 0 && (m.nextDue == 0 || expires < m.nextDue) {
		m.nextDue = expires
	}
}

// timeUpLocked ends a pin or a chunk, and returns when to look at the record
// again: 0 for never.
func (m *Master) timeUpLocked(rec uint32, now time.Duration) uint32 {
	r := m.seg.peekRecord(rec)
	if r.flags&(flagSoftPin|flagHardPin) != 0 {
		m.setPinLocked(rec, &r, PinNone, deadline(now, m.defaultTTLLocked(&r)))
		_, expires := m.seg.recordLife(rec)
		return expires
	}
	l := &m.live[rec]
	if l.state.Whole() {
		m.moveTo(rec, TimeUp)
		m.faces.set(rec, faceHidden)
		m.unlistLocked(rec, &r, RemovedExpired)
	}
	switch {
	case l.puts > 0: // it may become whole
		return r.expires
	case l.leases > 0:
		// It is looked at again when the lease may be over, not at every Tick.
		return deadline(now, leasedAgain)
	}
	m.dropLocked(rec, RemovedExpired)
	return 0
}

// expiredLocked tells whether a chunk's time is up, swept or not. A lease keeps
// what a lookup has promised.
func (m *Master) expiredLocked(rec uint32) bool {
	flags, expires := m.seg.recordLife(rec)
	return flags&(flagSoftPin|flagHardPin) == 0 && passed(m.clock.elapsed, expires) && m.live[rec].leases == 0
}

// unlistLocked counts and tells that lookups don't find a chunk any more.
func (m *Master) unlistLocked(rec uint32, r *record, why RemoveReason) {
	m.stats.Chunks--
	m.stats.Removed[why]++
	m.tellLocked(Removed, why, rec, r)
}

// listLocked counts and tells that lookups find a chunk.
func (m *Master) listLocked(rec uint32, r *record) {
	m.stats.Chunks++
	m.stats.Created++
	m.tellLocked(Stored, 0, rec, r)
}

// storedAgainLocked gives a chunk that somebody wanted to store its time anew,
// as if it had been stored now.
func (m *Master) storedAgainLocked(rec uint32, ttl time.Duration) {
	flags, expires := m.seg.recordLife(rec)
	if m.live[rec].state == Expired {
		r := m.seg.peekRecord(rec)
		m.moveTo(rec, StoredAgain)
		m.faces.clear(rec, faceHidden)
		m.listLocked(rec, &r)
	}
	if flags&(flagSoftPin|flagHardPin) == 0 && expires != 0 {
		m.setLifeLocked(rec, flags, deadline(m.clock.elapsed, ttl))
	}
}

// setLifeLocked sets a record's flags and deadline.
func (m *Master) setLifeLocked(rec uint32, flags recordFlags, expires uint32) {
	r := m.seg.peekRecord(rec)
	m.countDatedLocked(expires, 1) // first: lookups count without the lock, and must not find none meanwhile
	m.countDatedLocked(r.expires, -1)
	m.seg.setRecordLife(rec, r.saltTag, flags, expires)
}

// countDatedLocked keeps count of the records with a deadline. A deadline that
// comes up is noted for the sweep.
func (m *Master) countDatedLocked(expires uint32, by int) {
	if expires == 0 {
		return
	}
	m.dated.Add(int64(by))
	if by > 0 {
		m.dueLocked(expires)
	}
}

func (m *Master) defaultTTLLocked(r *record) time.Duration {
	return time.Duration(m.seg.namespaceTTL(int(r.namespace))) * time.Second
}

// SetDefaultTTL sets how long chunks of a namespace that are stored from now on
// live, unless the put says otherwise; 0: for ever.
func (m *Master) SetDefaultTTL(ns store.NamespaceID, ttl time.Duration) error {
	if err := checkTTL(ttl); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.namespaceLocked(ns); err != nil {
		return err
	}
	m.seg.setNamespaceTTL(int(ns), uint32((ttl+time.Second-1)/time.Second))
	return nil
}

// recordLife reads a record's flags and deadline.
func (s *segment) recordLife(rec uint32) (recordFlags, uint32) {
	return recordFlags(s.recordWord(rec, wordPlace) >> 48), uint32(s.recordWord(rec, wordEnd))
}
