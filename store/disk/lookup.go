package disk

// Has tells whether the chunk is on the disk, and how many bytes its record has.
// A chunk whose load has failed is not there, once.
func (t *Tier) Has(key *Key) (bytes uint64, ok bool) {
	t.mu.RLock()
	id, ok := t.findLocked(key)
	missOnce := false
	if ok {
		bytes, missOnce = uint64(t.catalog.entries[id].pages)*PageBytes, t.catalog.entries[id].missOnce
	}
	t.mu.RUnlock()
	if !missOnce {
		return bytes, ok
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.findLocked(key); ok {
		t.catalog.entries[id].missOnce = false
	}
	return 0, false
}

// findLocked finds the entry of a chunk that counts.
func (t *Tier) findLocked(key *Key) (uint32, bool) {
	if !t.usableLocked() {
		return 0, false
	}
	id, ok := t.catalog.find(keyOf(key))
	return id, ok && t.countsLocked(&t.catalog.entries[id])
}

// countsLocked tells whether an entry was neither reset nor has expired.
func (t *Tier) countsLocked(e *entry) bool {
	return !e.removed && t.resets.counts(t.spaces.value(e.space), uint64(e.resets)) && !t.expired(e.expires)
}

func (t *Tier) expired(expires uint32) bool {
	return expires != 0 && t.opts.Now().Unix() >= int64(expires)
}

// Room returns how many bytes a lookup may promise: as much as the disk reads
// within the patience of a load, beside what is being read already.
func (t *Tier) Room() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.usableLocked() {
		return 0
	}
	most := uint64(t.speed.rate * t.opts.Patience.Seconds())
	return most - min(t.fetchingBytes, most)
}

// MissOnce makes a chunk whose load failed a miss for the next lookup.
func (t *Tier) MissOnce(key *Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.findLocked(key); ok {
		t.catalog.entries[id].missOnce = true
	}
}

// Touch notes a use of a chunk that is in memory too.
func (t *Tier) Touch(key *Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.findLocked(key); ok {
		t.log.touch(t.catalog.entries[id].region)
	}
}
