package embedded

// SetQuota bounds an owner's bytes; 0 lifts the bound. What the owner has too
// much goes with its next puts.
func (m *Master) SetQuota(o Owner, bytes uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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
// slot, until it is not. False: the rest is in use or pinned.
func (m *Master) makeRoomLocked(o owner, slotBytes uint32) bool {
	ns, tag := &m.books.namespaces[o.namespace], &m.books.tags[o.tag]
	ofNamespace := func(k *chunkKind) bool { return k.namespace == o.namespace }
	ofTag := func(k *chunkKind) bool { return k.tag == o.tag }
	return m.evictWithinLocked(ns, slotBytes, ofNamespace) && m.evictWithinLocked(tag, slotBytes, ofTag)
}

func (m *Master) evictWithinLocked(a *account, slotBytes uint32, match func(*chunkKind) bool) bool {
	for a.over(uint64(slotBytes)) > 0 {
		if uint64(slotBytes) > a.quota {
			return false // nothing would help
		}
		if _, ok := m.evictLocked(RemovedQuota, match); !ok {
			return false
		}
	}
	return true
}

func (m *Master) ownerOfLocked(rec uint32) owner {
	return owner{namespace: uint16(m.seg.recordWord(rec, wordScope)) % maxNamespaces, tag: uint16(m.seg.recordWord(rec, wordPlace) >> 32)}
}
