package disk

import "context"

// A removal is in force when the call returns: what it names is not found, not
// fetched and, if it waits to be written, not kept. Settle waits until that holds
// for whoever opens the file next.

// Reset forgets the chunks of a namespace, those that wait to be written too. See
// Settle.
//
// REQUIRES: nothing of before is handed over after it.
func (t *Tier) Reset(namespace [32]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeWideLocked(namespaceMark(&namespace))
	t.noteResetLocked(&namespace)
	t.sweep = true
}

// ForgetNamespace is Reset for those who want to know how many chunks there were,
// as far as is known.
func (t *Tier) ForgetNamespace(namespace [32]byte) (chunks int) {
	return t.removeAndCount(namespaceMark(&namespace))
}

// ResetAll forgets all chunks of all namespaces. See Settle.
func (t *Tier) ResetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	if t.phase == starting {
		t.early, t.earlyAll = nil, true
	} else {
		t.removed.addAll()
		t.changedLocked(false)
	}
	t.sweep = true
	t.poke()
}

// ForgetTag forgets the chunks with a salt tag, of one namespace or, with nil, of
// all. It returns how many there were, as far as is known. See Settle.
func (t *Tier) ForgetTag(namespace *[32]byte, tag string) (chunks int) {
	m := tagMark(tag)
	if namespace != nil {
		m = taggedMark(namespace, tag)
	}
	return t.removeAndCount(m)
}

func (t *Tier) removeAndCount(m mark) (chunks int) {
	t.mu.Lock()
	t.removeWideLocked(m)
	t.mu.Unlock()
	return t.dropVoid()
}

func (t *Tier) removeWideLocked(m mark) {
	t.asked++
	if t.phase == starting {
		t.earlyLocked(m)
	} else {
		t.removed.addWide(m)
		t.changedLocked(false)
	}
	t.poke()
}

// earlyLocked keeps a removal until the file is open.
func (t *Tier) earlyLocked(m mark) {
	if len(t.early) == maxRemovalLines {
		t.early, t.earlyAll = nil, true
	}
	if !t.earlyAll {
		t.early = append(t.early, m)
	}
}

// forgetStep is how many chunks are forgotten under one hold of the lock.
const forgetStep = 1 << 10

// Forget forgets chunks, and returns how many of them there were, as far as is
// known. See Settle.
func (t *Tier) Forget(keys ...Key) (chunks int) { return t.ForgetWithTag(nil, keys...) }

// ForgetWithTag is Forget for those of the chunks that have the salt tag; nil:
// any.
func (t *Tier) ForgetWithTag(tag *string, keys ...Key) (chunks int) {
	condensed := make([][2]uint64, len(keys))
	for i := range keys {
		condensed[i] = keyOf(&keys[i])
	}
	return t.forget(tag, condensed)
}

func (t *Tier) forget(tag *string, keys [][2]uint64) (chunks int) {
	for from := 0; from == 0 || from < len(keys); from += forgetStep {
		chunks += t.forgetSome(tag, keys[from:min(from+forgetStep, len(keys))])
	}
	return chunks
}

func (t *Tier) forgetSome(tag *string, keys [][2]uint64) (chunks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	defer t.poke()
	var marks []mark
	for _, k := range keys {
		m := chunkMark
		if tag != nil {
			m = func(k [2]uint64) mark { return taggedChunkMark(k, *tag) }
		}
		if t.phase == starting {
			t.earlyLocked(m(k))
			continue
		}
		id, known := t.catalog.find(k)
		if known && (tag == nil || t.tags.value(t.catalog.entries[id].tag) == *tag) {
			if t.countsLocked(&t.catalog.entries[id]) {
				chunks++
			}
			t.removeLocked(id)
			t.stats.Removed++
		}
		// Of a chunk that is neither in the catalog nor about to be there is no
		// record, or only void ones.
		if known || t.queued[k] != nil || t.phase != serving {
			marks = append(marks, m(k))
		}
	}
	if len(marks) > 0 {
		t.removed.add(marks...)
		t.changedLocked(false)
	}
	return chunks
}

// voidLocked voids the records of a chunk that are not in the catalog.
func (t *Tier) voidLocked(key [2]uint64) {
	t.removed.add(chunkMark(key))
	t.changedLocked(false)
}

// changedLocked has the removals written. fewer: than there were.
func (t *Tier) changedLocked(fewer bool) {
	t.dirty, t.fewer = true, t.fewer || fewer
	// What the floor voids nobody counts. What is removed by namespace or tag is
	// swept by who removes it: the control loop must not take part of the count.
	if t.removed.floor > t.floorSeen {
		t.sweep, t.floorSeen = true, t.removed.floor
	}
	t.poke()
}

// hold is what is kept from being handed over: of a namespace, or nil for all,
// with a salt tag, or nil for any.
type hold struct {
	namespace *[32]byte
	tag       *string
}

func (h *hold) has(c *Chunk) bool {
	return (h.namespace == nil || *h.namespace == c.Namespace) && (h.tag == nil || *h.tag == c.Tag)
}

// Hold keeps chunks of a namespace, or with nil of all, that have a salt tag, or
// with nil any, from being handed over until release is called: Demote returns
// false. A removal that goes through memory and disk holds what it removes, so that
// nothing slips from one to the other between its looks.
func (t *Tier) Hold(namespace *[32]byte, tag *string) (release func()) {
	h := &hold{namespace, tag}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[h] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, h)
	}
}

func (t *Tier) heldLocked(c *Chunk) bool {
	for h := range t.held {
		if h.has(c) {
			return true
		}
	}
	return false
}

// Settle returns when no restart can undo the removals that were asked for
// before. ErrUncertain: the disk is out of service, or ctx ended first; it is
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
