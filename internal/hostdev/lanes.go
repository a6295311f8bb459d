package hostdev

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/worker"
)

// divided is a batch that several lanes copy, each the next shard that none has
// taken.
//
// INVARIANT: what was taken is copied, or is the lane's under way, but for the shards
// from where one failed on.
type divided struct {
	m         *mapping
	direction worker.Direction
	batch     []worker.ShardCopy
	goOn      func(copied int) bool // asked before each shard but the first, by any lane
	taken     atomic.Int64
	ended     atomic.Bool // nothing is taken any more

	mu     sync.Mutex
	failed int // guarded by mu: the first shard that did
	err    error
}

// lane copies shards until there are no more, or it need not go on.
func (d *divided) lane(ctx context.Context) {
	shard := -1
	err := guarded(func() error {
		for shard = d.take(); shard >= 0; shard = d.take() {
			ahead := d.m.lookaheadOf(d.direction, d.batch[shard:shard+1])
			if err := d.m.copyShard(ctx, d.direction, &d.batch[shard], &ahead); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.fail(shard, err)
	}
}

// take returns the next shard, -1 if there is none.
func (d *divided) take() int {
	for {
		next := d.taken.Load()
		if next >= int64(len(d.batch)) || d.ended.Load() {
			return -1
		}
		if next > 0 && !d.goOn(int(next)) {
			d.ended.Store(true)
			return -1
		}
		if d.taken.CompareAndSwap(next, next+1) {
			return int(next)
		}
	}
}

func (d *divided) fail(shard int, err error) {
	d.ended.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || shard < d.failed {
		d.failed, d.err = shard, err
	}
}

// result returns how many shards were copied, from the first on.
//
// REQUIRES: no lane is under way.
func (d *divided) result() (copied int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.failed, d.err
	}
	return int(d.taken.Load()), nil
}

// helper is a thread that takes part in what another does.
type helper struct {
	work    chan func()
	ending  sync.Once // closes work
	running sync.WaitGroup
}

// newHelper returns one whose thread is run's; without a thread, too, all work is done.
func newHelper(run func(work func())) *helper {
	h := &helper{work: make(chan func(), 1)}
	h.running.Go(func() {
		run(func() {
			for work := range h.work {
				work()
			}
		})
	})
	return h
}

// share does work, and has the helper do it at the same time, unless it comes to it
// when that is done. It returns when neither does it any more.
//
// REQUIRES: one caller at a time; of what work is, it does all that nobody beside it
// has taken.
func (h *helper) share(work func()) {
	var taken atomic.Bool // by the helper, or back from it
	ended := make(chan struct{})
	select {
	case h.work <- func() {
		if taken.CompareAndSwap(false, true) {
			work()
			close(ended)
		}
	}:
	default: // it has not come to what was last
		work()
		return
	}
	work()
	if !taken.CompareAndSwap(false, true) {
		<-ended
	}
}

// close ends the thread and waits for it. A second call waits too.
//
// REQUIRES: no work is shared, nor will be.
func (h *helper) close() {
	if h == nil {
		return
	}
	h.ending.Do(func() { close(h.work) })
	h.running.Wait()
}
