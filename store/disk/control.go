package disk

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// retryInterval is how long after a failure to note removals, or to open the file,
// it is tried again, the disk being in service.
const retryInterval = 5 * time.Second

// runControl opens the file, has it looked through, and then notes removals and
// probes a disk that is out of service, until ctx ends.
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
			t.settleAtTheEnd() //nolint:contextcheck // ctx is over
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
	t.sweepIfDue()
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

// onControl makes a call on the control lane. ErrClosed: it was left when ctx ended.
func (t *Tier) onControl(ctx context.Context, what string, deadline time.Duration, call func() error) error {
	l := t.control.take(ctx, t.opts.WriteDeadline)
	if l == nil {
		return ErrOutOfService
	}
	err := l.runUntil(ctx.Done(), deadline, call)
	if kindOf(err) != KindTimeout {
		l.release()
	} else if ctx.Err() != nil {
		return ErrClosed // not the disk's fault
	}
	if err != nil {
		t.failed(what, err)
	}
	return err
}
