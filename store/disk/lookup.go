package disk

import (
	"math"
	"time"
)

// Found is what the catalog knows of a chunk.
type Found struct {
	Bytes   uint64 // of its record
	Tag     string
	Expires uint32
}

// Look tells whether the chunk is on the disk. Unlike Has it leaves no trace.
func (t *Tier) Look(key *Key) (Found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	id, ok := t.findLocked(key)
	if !ok {
		return Found{}, false
	}
	return t.foundLocked(id), true
}

func (t *Tier) foundLocked(id uint32) Found {
	e := &t.catalog.entries[id]
	return Found{Bytes: uint64(e.pages) * PageBytes, Tag: t.tags.value(e.tag), Expires: e.expires}
}

// Has is Look for one who wants to have the chunk: one whose load has failed is
// not there, once. What was found is returned all the same.
func (t *Tier) Has(key *Key) (found Found, ok bool) {
	t.mu.RLock()
	id, ok := t.findLocked(key)
	missOnce := false
	if ok {
		found, missOnce = t.foundLocked(id), t.catalog.entries[id].missOnce
	}
	t.mu.RUnlock()
	if !missOnce {
		return found, ok
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.findLocked(key); ok {
		t.catalog.entries[id].missOnce = false
	}
	return found, false
}

// Offers is Has that leaves the trace that it finds: a lookup is to see it.
func (t *Tier) Offers(key *Key) (found Found, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	id, ok := t.findLocked(key)
	if !ok || t.catalog.entries[id].missOnce {
		return Found{}, false
	}
	return t.foundLocked(id), true
}

// findLocked finds the entry of a chunk that counts.
func (t *Tier) findLocked(key *Key) (uint32, bool) {
	if !t.usableLocked() {
		return 0, false
	}
	id, ok := t.catalog.find(keyOf(key))
	return id, ok && t.catalog.entries[id].region != t.log.closing && t.countsLocked(&t.catalog.entries[id])
}

// countsLocked tells whether an entry was neither removed nor has expired.
func (t *Tier) countsLocked(e *entry) bool {
	return !e.removed && (t.swept >= t.removed.wide || uint64(e.birth) >= t.removed.wide || uint64(e.birth) >= t.thresholdLocked(e)) &&
		!t.expired(e.expires)
}

func (t *Tier) expired(expires uint32) bool {
	return expires != 0 && t.opts.Now().Unix() >= int64(expires)
}

// Room returns how many bytes a lookup may promise: as much as the disk reads
// within the patience of a load, beside what is being read already.
func (t *Tier) Room() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.roomLocked()
}

// HasTimeFor tells whether so many bytes more would be read within the patience,
// if nobody waits for them. A chunk for which there never is as much time is read
// when there is nothing else.
func (t *Tier) HasTimeFor(bytes uint64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked() && len(t.fetches) < cap(t.fetches)/2 && (t.fetchingBytes == 0 || bytes <= t.roomLocked())
}

// Serves tells whether the disk is in service.
func (t *Tier) Serves() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked()
}

// CanFetch tells whether Fetch would take a chunk now.
func (t *Tier) CanFetch() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked() && len(t.fetches) < cap(t.fetches)
}

func (t *Tier) roomLocked() uint64 {
	if !t.usableLocked() {
		return 0
	}
	most := uint64(t.speed.expect(t.opts.Now()) * t.opts.Patience.Seconds())
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

// Deadline returns what a time to live that begins now is in a Chunk; 0 is for
// ever in both.
func (t *Tier) Deadline(ttl time.Duration) uint32 {
	if ttl <= 0 {
		return 0
	}
	return uint32(min(max(t.opts.Now().Add(ttl).Unix(), 1), math.MaxUint32))
}

// Left returns what is left of a time to live, at least a second.
func (t *Tier) Left(expires uint32) time.Duration {
	if expires == 0 {
		return 0
	}
	return max(time.Unix(int64(expires), 0).Sub(t.opts.Now()), time.Second)
}

// QueueBytes is how many bytes of chunks may wait to be written.
func (t *Tier) QueueBytes() uint64 { return t.opts.QueueBytes }
