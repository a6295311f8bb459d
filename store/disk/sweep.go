package disk

// sweepStride is how many entries are looked at under one hold of the lock.
const sweepStride = 1 << 12

// sweepIfDue is dropVoid for removals whose callers do not wait for it.
func (t *Tier) sweepIfDue() {
	t.mu.Lock()
	due := t.sweep && t.phase == serving
	if due {
		t.sweep = false
	}
	t.mu.Unlock()
	if due {
		t.dropVoid()
	}
}

// dropVoid takes what was removed by namespace or tag out of the catalog, and
// returns how many chunks that were. Lookups do not find them anyway; they only
// have to look harder until then.
func (t *Tier) dropVoid() (chunks int) {
	t.mu.RLock()
	wide, due := t.removed.wide, t.phase == serving // else the end of the scan has it done
	t.mu.RUnlock()
	for from := uint32(0); due; from += sweepStride {
		t.mu.Lock()
		n, end := t.sweepSomeLocked(from)
		if due = !end && t.phase == serving; end {
			t.swept = max(t.swept, wide)
		}
		t.mu.Unlock()
		chunks += n
	}
	return chunks
}

func (t *Tier) sweepSomeLocked(from uint32) (chunks int, end bool) {
	to := min(from+sweepStride, t.catalog.fresh)
	thresholds := map[uint32]uint64{} // by namespace and tag
	for id := from; id < to; id++ {
		e := &t.catalog.entries[id]
		if e.removed {
			continue
		}
		both := uint32(e.space)<<16 | uint32(e.tag)
		lowest, known := thresholds[both]
		if !known {
			lowest = t.thresholdLocked(e)
			thresholds[both] = lowest
		}
		if uint64(e.birth) < lowest {
			t.removeLocked(id)
			t.stats.Removed++
			chunks++
		}
	}
	return chunks, to == t.catalog.fresh
}

func (t *Tier) thresholdLocked(e *entry) uint64 {
	space := t.spaces.value(e.space)
	return t.removed.threshold(&space, t.tags.value(e.tag))
}
