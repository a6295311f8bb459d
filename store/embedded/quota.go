package embedded

// quotaStep bounds how many chunks are dropped for quotas while the lock is held.
const quotaStep = 256

// quotaPatience bounds how many chunks are looked at, beyond the usual, of lists
// that begin with chunks in use.
const quotaPatience = 1024

// quotaWork is what has been done for quotas while the lock is held.
type quotaWork struct {
	dropped, patience int
	// leasesSeen: those that have run out were dropped, which is a look at each.
	leasesSeen bool
}

func newQuotaWork() quotaWork { return quotaWork{patience: quotaPatience} }

// SetQuota bounds an owner's bytes; 0 lifts the bound. What the owner has too
// much goes with its next puts, and with Tick, some chunks at a time.
func (m *Master) SetQuota(o Owner, bytes uint64) error {
	if bytes > 0 {
		m.orderOwners()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quotaSet = true
	if o.Tag != "" {
		i, err := m.tagLocked(o.Tag)
		if err != nil {
			return err
		}
		m.seg.setTagQuota(i, bytes)
		m.books.tags[i].quota = bytes
		return nil
	}
	if _, err := m.namespaceLocked(o.Namespace); err != nil {
		return err
	}
	m.seg.setNamespaceQuota(int(o.Namespace), bytes)
	m.books.namespaces[o.Namespace].quota = bytes
	return nil
}

// makeRoomLocked drops chunks of an owner that is over its quota with one more
// slot, until it is not. False: the rest is in use or pinned, or the call has
// dropped as much as it may.
func (m *Master) makeRoomLocked(call *putCall, o owner, slotBytes uint32) bool {
	return m.evictWithinLocked(&m.books.namespaces[o.namespace], byNamespace, o.namespace, slotBytes, &call.forQuotas) &&
		m.evictWithinLocked(&m.books.tags[o.tag], byTag, o.tag, slotBytes, &call.forQuotas)
}

// evictWithinLocked drops an owner's chunks until it has room for a slot of that
// size, 0 for none.
func (m *Master) evictWithinLocked(a *account, dimension int, number uint16, slotBytes uint32, work *quotaWork) bool {
	for a.over(uint64(slotBytes)) > 0 {
		if uint64(slotBytes) > a.quota || work.dropped == m.opts.steps.quota {
			return false // nothing would help, or Tick will
		}
		if !m.evictOwnedLocked(dimension, number, work) {
			return false
		}
		work.dropped++
	}
	return true
}

// evictOwnedLocked drops the next chunk of an owner, one on its way down to the
// disk or not. Softly pinned ones go last.
func (m *Master) evictOwnedLocked(dimension int, number uint16, work *quotaWork) bool {
	if m.owned == nil {
		return false
	}
	may := func(rec uint32) bool {
		mv := m.awayLocked(rec)
		return !m.live[rec].inUse() && (mv == nil || !mv.writing)
	}
	rec, ok := m.owned.next(dimension, number, PinNone, &work.patience, may)
	if !ok && !work.leasesSeen {
		work.leasesSeen = true
		if expired, _ := m.expireLeasesLocked(); expired {
			rec, ok = m.owned.next(dimension, number, PinNone, &work.patience, may)
		}
	}
	if !ok {
		rec, ok = m.owned.next(dimension, number, PinSoft, &work.patience, may)
	}
	if !ok {
		return false
	}
	m.stats.countAge(age(m.clock.elapsed, m.lastUse[rec]))
	m.dropLocked(rec, RemovedQuota)
	return true
}

// keepQuotasLocked drops some of what owners have too much since a quota was set;
// otherwise puts see to it. What is in use is tried again the next time. True:
// there may be more to do at once.
func (m *Master) keepQuotasLocked() bool {
	if !m.quotaSet {
		return false
	}
	work := newQuotaWork()
	work.leasesSeen = true // by Tick
	m.quotaSet = false
	for i := range m.books.namespaces {
		m.evictWithinLocked(&m.books.namespaces[i], byNamespace, uint16(i), 0, &work)
		m.quotaSet = m.quotaSet || m.books.namespaces[i].over(0) > 0
	}
	for i := range m.books.tags {
		m.evictWithinLocked(&m.books.tags[i], byTag, uint16(i), 0, &work)
		m.quotaSet = m.quotaSet || m.books.tags[i].over(0) > 0
	}
	return m.quotaSet && work.dropped > 0
}

func (m *Master) ownerOfLocked(rec uint32) owner {
	return owner{namespace: uint16(m.seg.recordWord(rec, wordScope)) % maxNamespaces, tag: uint16(m.seg.recordWord(rec, wordPlace) >> 32)}
}
