package disk

import (
	"context"
	"time"
)

// syncDeadline is in write deadlines: a sync has much to write where the page cache
// can't be passed by, or waits for the disk's own.
const syncDeadline = 5

// settle syncs the data file if need be and notes removals on the disk, and returns when to try again what failed.
func (t *Tier) settle(ctx context.Context) time.Duration {
	t.mu.Lock()
	if t.phase == starting || t.breaker.state != inService {
		wait := t.breaker.probeIn(t.opts.Now())
		t.mu.Unlock()
		return max(wait, time.Millisecond)
	}
	asked := t.asked
	// While the file is looked through no removal goes by the catalog, and a region
	// that can't be read may be the next time. Later, regions that left the catalog
	// need to be noted only before a removal that goes by it is said to be done.
	all := t.phase == serving
	due := t.dirty || t.settled != asked && all && t.removed.unnoted()
	if !due && !t.unsynced {
		t.settledUpToLocked(asked)
		t.mu.Unlock()
		return -1
	}
	var note removalsNote
	fewer := false
	if due {
		t.pruneLocked()
		note, fewer = t.removed.note(all), t.fewer
		t.dirty, t.fewer = false, false
	}
	// What overwrote records must not be lost with the power, be they void by what the
	// list had before, or not in the catalog when it was added to. Regions that were
	// begun anew are synced soon, so that removals rarely wait for it.
	sync := fewer || t.unsynced
	t.unsynced = false
	t.mu.Unlock()

	var err error
	if sync {
		err = t.onControl(ctx, "sync", syncDeadline*t.opts.WriteDeadline, t.file.Sync)
	}
	if err == nil && due {
		err = t.onControl(ctx, "note removals", t.opts.WriteDeadline, func() error {
			return t.dir.WriteFile(removalsName, note.encode())
		})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.settledLocked()
	if due {
		t.noteFull = err != nil && kindOf(err) == KindFull
		t.noteFails = err != nil && !t.noteFull
	}
	if err != nil {
		t.dirty, t.fewer, t.unsynced = t.dirty || due, t.fewer || fewer, t.unsynced || sync
		return retryInterval
	}
	if due {
		t.noted = note.count
	}
	t.settled = max(t.settled, asked)
	if t.dirty || t.unsynced || t.asked > asked {
		return 0
	}
	return -1
}

func (t *Tier) settledUpToLocked(asked uint64) {
	if t.settled < asked {
		t.settled = asked
		t.settledLocked()
	}
}

// settleAtTheEnd notes what is left when the tier is closed.
func (t *Tier) settleAtTheEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
	defer cancel()
	t.settle(ctx)
}

// submittableLocked tells whether a record of that birth may be written: the file of
// removals has those of before it. A record that is on the disk before them says,
// after a kill, that some are not known, and then nothing of before it counts. Where
// they can't be noted because the disk is full, that is as it should be: it may be so
// for long, and nobody waits.
func (t *Tier) submittableLocked(birth uint64) bool { return birth <= t.noted || t.noteFull }

// awaitNote returns when a record of that birth may be written. ErrGone: that is
// not so in time, or not before a note that has failed is tried again.
func (t *Tier) awaitNote(ctx context.Context, birth uint64) error {
	timer := time.NewTimer(t.opts.WriteDeadline)
	defer timer.Stop()
	for {
		t.mu.RLock()
		may, usable, fails, event := t.submittableLocked(birth), t.usableLocked(), t.noteFails, t.settledEvent
		t.mu.RUnlock()
		switch {
		case !usable:
			return ErrOutOfService
		case may:
			return nil
		case fails:
			return ErrGone
		}
		select {
		case <-event:
		case <-timer.C:
			return ErrGone
		case <-ctx.Done():
			return ErrClosed
		}
	}
}

// pruneLocked forgets removals that are older than every record.
func (t *Tier) pruneLocked() {
	if t.phase != serving || len(t.removed.lines) < t.pruneAt {
		return
	}
	lowest := t.removed.count
	for _, d := range t.queued {
		lowest = min(lowest, d.birth)
	}
	for id := range t.log.regions {
		if birth := t.log.regions[id].birth; birth != unborn {
			if _, void := t.removed.void[uint32(id)]; !void {
				lowest = min(lowest, uint64(birth))
			}
		}
	}
	t.fewer = t.removed.forget(lowest) || t.fewer
	t.pruneAt = max(t.opts.leastPrune, 2*len(t.removed.lines))
}

// removeEarlyLocked takes up the removals of before the file was open.
func (t *Tier) removeEarlyLocked() {
	if t.earlyAll {
		t.removed.addAll()
	}
	for _, m := range t.early {
		t.removed.addWide(m) // some are; the scan looks at all of them anyway
	}
	if t.earlyAll || len(t.early) > 0 {
		t.changedLocked(false)
	}
	t.early, t.earlyAll = nil, false
}
