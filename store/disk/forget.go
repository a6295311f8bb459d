package disk

import "context"

// removal is a record whose header is to say that it was removed.
//
// INVARIANT: it counts as a reader of its region.
type removal struct{ place place }

// Reset forgets the chunks of a namespace, those that wait to be written too. See
// Settle.
func (t *Tier) Reset(namespace [32]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	if t.phase == starting {
		t.early = append(t.early, namespace)
	} else {
		t.resets.add(namespace)
		t.resetsDirty, t.sweep = true, true
	}
	t.poke()
}

// ResetAll forgets all chunks of all namespaces. See Settle.
func (t *Tier) ResetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	if t.phase == starting {
		t.earlyAll = true
	} else {
		t.resetAllLocked()
	}
	t.poke()
}

func (t *Tier) resetAllLocked() {
	t.resets.count++
	t.resets.clear()
	t.resetsDirty, t.sweep = true, true
}

// Forget forgets chunks. See Settle.
func (t *Tier) Forget(keys ...Key) {
	t.ForgetWithTag(nil, keys...)
}

// ForgetWithTag forgets those of the chunks that have the salt tag, or with nil
// all, and returns how many the catalog had. See Settle.
func (t *Tier) ForgetWithTag(tag *string, keys ...Key) (chunks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	for i := range keys {
		k := keyOf(&keys[i])
		if d := t.queued[k]; d != nil && (tag == nil || d.chunk.Tag == *tag) {
			t.forgetQueuedLocked(d)
		}
		if id, ok := t.catalog.find(k); ok && (tag == nil || t.tags.value(t.catalog.entries[id].tag) == *tag) {
			t.removeLocked(id)
			chunks++
		}
	}
	t.poke()
	return chunks
}

// forgetQueuedLocked removes a chunk that waits to be written, or is just being.
func (t *Tier) forgetQueuedLocked(d *demotion) {
	if d.writing && !d.forgotten {
		t.forgotten++
	}
	d.forgotten = true
}

// removeLocked takes an entry out, and notes that its record is to be marked.
func (t *Tier) removeLocked(id uint32) {
	e := &t.catalog.entries[id]
	t.catalog.remove(id)
	t.stats.Removed++
	r := &t.log.regions[e.region]
	r.readers++
	t.removals = append(t.removals, removal{place{region: e.region, page: e.page, pages: e.pages, sequence: r.sequence}})
	t.poke()
}

// ForgetTag forgets the chunks with a salt tag, of one namespace or, with nil, of
// all. It returns how many there were. See Settle.
func (t *Tier) ForgetTag(namespace *[32]byte, tag string) (chunks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	for _, d := range t.queued {
		if d.chunk.Tag == tag && (namespace == nil || *namespace == d.chunk.Namespace) {
			t.forgetQueuedLocked(d)
		}
	}
	number, known := t.tags.ids[tag]
	if !known {
		t.poke()
		return 0
	}
	for id := range t.catalog.fresh {
		e := &t.catalog.entries[id]
		if e.removed || e.tag != number || namespace != nil && t.spaces.value(e.space) != *namespace {
			continue
		}
		chunks++
		t.removeLocked(id)
	}
	return chunks
}

// Settle returns when no restart can undo the resets and removals that were asked
// for before. ErrUncertain: the disk is out of service, or ctx ended first; it is
// tried on.
func (t *Tier) Settle(ctx context.Context) error {
	t.mu.Lock()
	want := t.asked
	for t.settled < want {
		if t.phase == closed || t.breaker.state != inService {
			t.mu.Unlock()
			return ErrUncertain
		}
		event := t.settledEvent
		t.mu.Unlock()
		select {
		case <-event:
		case <-ctx.Done():
			return ErrUncertain
		}
		t.mu.Lock()
	}
	t.mu.Unlock()
	return nil
}
