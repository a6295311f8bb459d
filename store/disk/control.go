package disk

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"
)

// retryInterval is how long after a failure to note a reset, or to open the file,
// it is tried again, the disk being in service.
const retryInterval = 5 * time.Second

// runControl opens the file, has it looked through, and then notes resets and
// removals and probes a disk that is out of service, until ctx ends.
func (t *Tier) runControl(ctx context.Context) {
	var scan sync.WaitGroup
	defer scan.Wait()
	wait := time.Duration(0)
	scanned := make(chan bool, 1)
	for {
		timer := time.NewTimer(max(wait, 0))
		due := timer.C
		if wait < 0 {
			timer.Stop()
			due = nil
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case whole := <-scanned:
			if !whole {
				t.restart()
			}
		case <-t.wake:
		case <-due:
		}
		timer.Stop()
		wait = t.attend(ctx, func() {
			scan.Go(func() { scanned <- t.scan(ctx) })
		})
	}
}

// restart begins anew after a look through the file that failed: the next attend
// opens it again.
func (t *Tier) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = starting
	t.breaker.failed(t.opts.Now(), true)
}

// attend does what is due and returns when to look again, less than 0 for not
// before there is something to do.
func (t *Tier) attend(ctx context.Context, scan func()) time.Duration {
	t.mu.RLock()
	phase, state := t.phase, t.breaker.state
	wait := t.breaker.probeIn(t.opts.Now())
	t.mu.RUnlock()
	switch {
	case state == outOfService && wait > 0:
		return wait
	case phase == starting:
		// Opening the file is the probe.
		if err := t.open(ctx); err != nil {
			t.notOpened(err)
			return retryInterval
		}
		t.mu.Lock()
		t.breaker.probed(t.opts.Now())
		t.phase = scanning
		t.mu.Unlock()
		scan()
	case state == outOfService:
		if !t.probe(ctx) {
			return firstCooldown
		}
	}
	t.dropReset()
	return t.settle(ctx)
}

// probe writes a page of its own and reads it back.
func (t *Tier) probe(ctx context.Context) bool {
	l := t.control.take(ctx, 0)
	if l == nil {
		return false // the call that failed still hangs
	}
	t.mu.Lock()
	t.breaker.probe()
	file, mark := t.file, t.opts.Now().UnixNano()
	t.mu.Unlock()
	page := l.buf[:PageBytes]
	clear(page)
	le.PutUint64(page, uint64(mark))
	err := l.run(t.opts.WriteDeadline, func() error {
		if err := writeAll(file, page, probeAt); err != nil {
			return err
		}
		want := bytes.Clone(page)
		clear(page)
		if err := readAll(file, page, probeAt); err != nil {
			return err
		}
		if !bytes.Equal(page, want) {
			return ErrDamaged
		}
		return nil
	})
	if kindOf(err) != KindTimeout {
		l.release()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.stats.Errors[kindOf(err)]++
		t.breaker.failed(t.opts.Now(), true)
		return false
	}
	t.breaker.probed(t.opts.Now())
	t.opts.Log.Info("the disk tier is in service again", "chunks", t.catalog.live)
	return true
}

// removalStep is how many records are marked before the loop looks whether there
// was a reset.
const removalStep = 256

// settle notes resets and removals on the disk, and returns when to try again
// what failed.
func (t *Tier) settle(ctx context.Context) time.Duration {
	t.mu.Lock()
	if t.phase == starting || t.breaker.state != inService {
		wait := t.breaker.probeIn(t.opts.Now())
		t.mu.Unlock()
		return max(wait, time.Millisecond)
	}
	asked := t.asked
	var resets []byte
	if t.resetsDirty {
		resets = t.resets.encode()
		t.resetsDirty = false
	}
	n := min(len(t.removals), removalStep)
	removals := slices.Clone(t.removals[:n])
	t.removals = slices.Delete(t.removals, 0, n)
	all := t.forgotten == 0 // else a removal is still to come
	t.mu.Unlock()

	err := t.noteResets(ctx, resets)
	left := removals
	if err == nil {
		left, err = t.noteRemovals(ctx, removals)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range removals[:len(removals)-len(left)] {
		// The regions may have been made new meanwhile.
		if at := int(removals[i].place.region); at < len(t.log.regions) && t.log.regions[at].readers > 0 {
			t.log.regions[at].readers--
		}
	}
	t.removals = append(t.removals, left...)
	if err != nil {
		t.resetsDirty = t.resetsDirty || resets != nil
		return retryInterval
	}
	if len(t.removals) > 0 {
		return 0
	}
	if all && t.settled < asked {
		t.settled = asked
		t.settledLocked()
	}
	if t.asked > asked {
		return 0
	}
	return -1
}

func (t *Tier) noteResets(ctx context.Context, resets []byte) error {
	if resets == nil {
		return nil
	}
	return t.onControl(ctx, "note resets", func([]byte) error { return t.dir.WriteFile(resetsName, resets) })
}

// noteRemovals marks records as removed and returns those that are left to do.
func (t *Tier) noteRemovals(ctx context.Context, removals []removal) ([]removal, error) {
	for i := range removals {
		if ctx.Err() != nil {
			return removals[i:], ErrClosed
		}
		p := removals[i].place
		at := t.offset(p)
		err := t.onControl(ctx, "mark removed", func(page []byte) error {
			if err := readAll(t.file, page, at); err != nil {
				return err
			}
			if h, err := decodeRecord(page); err == nil && h.sequence == p.sequence { // else it is not there
				h.removed = true
				h.encode(page)
				return writeAll(t.file, page, at)
			}
			return nil
		})
		if err != nil {
			return removals[i:], err
		}
	}
	if len(removals) == 0 {
		return nil, nil
	}
	// What is removed must not come back with a loss of power either.
	if err := t.onControl(ctx, "sync", func([]byte) error { return t.file.Sync() }); err != nil {
		return removals[len(removals)-1:], err
	}
	return nil, nil
}

// onControl makes a call on the control lane, with its page.
func (t *Tier) onControl(ctx context.Context, what string, call func(page []byte) error) error {
	l := t.control.take(ctx, t.opts.WriteDeadline)
	if l == nil {
		return ErrOutOfService
	}
	page := l.buf[:PageBytes]
	err := l.run(t.opts.WriteDeadline, func() error { return call(page) })
	if kindOf(err) != KindTimeout {
		l.release()
	}
	if err != nil {
		t.failed(what, err)
	}
	return err
}

// sweepStride is how many entries are looked at under one hold of the lock.
const sweepStride = 1 << 12

// dropReset takes the entries of namespaces that were reset out of the catalog.
// Lookups do not find them anyway.
func (t *Tier) dropReset() {
	t.mu.Lock()
	due := t.sweep && t.phase == serving
	if due {
		t.sweep = false
	}
	t.mu.Unlock()
	for from := uint32(0); due; from += sweepStride {
		t.mu.Lock()
		end := min(from+sweepStride, t.catalog.fresh)
		for id := from; id < end; id++ {
			if e := &t.catalog.entries[id]; !e.removed && !t.countsLocked(e) {
				t.catalog.remove(id)
				t.stats.Removed++
			}
		}
		due = end < t.catalog.fresh
		t.mu.Unlock()
	}
}
