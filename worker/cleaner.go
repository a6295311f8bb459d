package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// cleaner gives back to the store what jobs took from it: references of loads
// and tickets of stores that came to nothing. It does so behind the jobs'
// results, which have no reason to wait for it, and tries again while the store
// is away.
//
// Its goroutine runs only while there is something to do, and gathers that for a
// moment.
type cleaner struct {
	store   store.Store
	timeout time.Duration
	log     *slog.Logger
	ctx     context.Context // done when retries must end
	cancel  context.CancelFunc

	mu struct {
		sync.Mutex
		refs    []uint64
		tickets map[store.Namespace][]uint64
		running bool
	}
	running sync.WaitGroup
}

const (
	// maxKept bounds what is remembered while the store is away; what is beyond
	// is the store's to find, by the declaration of the next session.
	maxKept = 1 << 20
	// gatherPause lets the engine begin the step that a load's end allows before the
	// store is told of it: the call wakes two threads.
	gatherPause   = 20 * time.Millisecond
	retryPause    = 100 * time.Millisecond
	retryPauseMax = 5 * time.Second
)

func newCleaner(s store.Store, timeout time.Duration, log *slog.Logger) *cleaner {
	c := &cleaner{store: s, timeout: timeout, log: log}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.tickets = map[store.Namespace][]uint64{}
	return c
}

// release gives references back, soon.
func (c *cleaner) release(refs []uint64) {
	if len(refs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.refs = keep(c.mu.refs, refs)
	c.startLocked()
}

// revoke gives tickets back, soon.
func (c *cleaner) revoke(ns store.Namespace, tickets []uint64) {
	if len(tickets) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.tickets[ns] = keep(c.mu.tickets[ns], tickets)
	c.startLocked()
}

func keep(old, more []uint64) []uint64 {
	if len(old)+len(more) > maxKept {
		return old
	}
	return append(old, more...)
}

func (c *cleaner) startLocked() {
	if c.mu.running {
		return
	}
	c.mu.running = true
	c.running.Add(1)
	go c.run()
}

func (c *cleaner) run() {
	defer c.running.Done()
	wait, retry := gatherPause, retryPause
	for c.goesOn() {
		if wait != gatherPause || !c.revokes() { // a put that is open keeps others from the same
			pause(c.ctx, wait)
		}
		closing := c.ctx.Err() != nil
		if c.clean(c.take()) {
			wait, retry = gatherPause, retryPause
			continue
		}
		if closing {
			return // the store learns it from the end of our session
		}
		wait, retry = retry, min(2*retry, retryPauseMax)
	}
}

// goesOn reports whether there is anything to do; without, the goroutine must end.
func (c *cleaner) goesOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.running = len(c.mu.refs) > 0 || len(c.mu.tickets) > 0
	return c.mu.running
}

// revokes reports whether there are tickets to give back.
func (c *cleaner) revokes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.tickets) > 0
}

// take empties the queue.
func (c *cleaner) take() (refs []uint64, tickets map[store.Namespace][]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refs, tickets = c.mu.refs, c.mu.tickets
	c.mu.refs, c.mu.tickets = nil, map[store.Namespace][]uint64{}
	return refs, tickets
}

// clean makes one attempt and puts back what the store could not be told.
func (c *cleaner) clean(refs []uint64, tickets map[store.Namespace][]uint64) (ok bool) {
	ok = true
	if len(refs) > 0 && c.failed("release", func(ctx context.Context) error { return c.store.Release(ctx, refs) }) {
		ok = false
		c.mu.Lock()
		c.mu.refs = keep(c.mu.refs, refs)
		c.mu.Unlock()
	}
	for ns, list := range tickets {
		if c.failed("revoke", func(ctx context.Context) error { return c.store.PutRevoke(ctx, ns, list) }) {
			ok = false
			c.mu.Lock()
			c.mu.tickets[ns] = keep(c.mu.tickets[ns], list)
			c.mu.Unlock()
		}
	}
	return ok
}

// failed reports whether a call should be tried again: not when the store has
// answered.
func (c *cleaner) failed(what string, call func(context.Context) error) bool {
	// Not under c.ctx: closing gives the last attempt its time.
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	err := call(ctx)
	if err == nil {
		return false
	}
	again := errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	c.log.Warn("could not give back to the store", "what", what, "error", err, "again", again)
	return again
}

// close ends the retries and waits for the attempt under way, at least one for
// what was handed in before.
//
// REQUIRES: no release or revoke follows.
func (c *cleaner) close() {
	c.cancel()
	c.running.Wait()
}
