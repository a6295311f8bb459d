package copying

import (
	"errors"
	"sync"
)

// ErrClosed refuses a batch of a mapping that is closed.
var ErrClosed = errors.New("the mapping is closed")

// queued is more than the one batch that a store pipeline has under way.
const queued = 16

// Queue has the batches of one mapping copied. The zero value works, without a
// thread for stores. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	closed  bool           // guarded by mu
	stores  chan func()    // nil before Start
	batches sync.WaitGroup // and Start's goroutine
}

// Start begins the one thread that stores have, which nobody waits for, so that
// they never take more than one core. background runs its work at a low priority.
//
// REQUIRES: it is called before all else, once.
func (q *Queue) Start(background func(work func())) {
	q.stores = make(chan func(), queued)
	q.batches.Go(func() {
		background(func() {
			for batch := range q.stores {
				batch()
			}
		})
	})
}

// Store has a store's batch copied by the stores' thread; in a closed queue it calls
// refused at once.
func (q *Queue) Store(batch, refused func()) {
	q.enqueue(batch, refused, func(work func()) bool {
		select {
		case q.stores <- work:
			return true
		default: // a caller with many batches at once
			return false
		}
	})
}

// Load has a load's batch copied by a goroutine of its own; in a closed queue it
// calls refused at once. Batches come from a handful of pipelines, each of which
// waits for its batch, so that their number is bounded by those.
func (q *Queue) Load(batch, refused func()) {
	q.enqueue(batch, refused, func(func()) bool { return false })
}

// enqueue runs a batch, or refuses it. take, called under mu, may have another run
// it.
func (q *Queue) enqueue(batch, refused func(), take func(work func()) bool) {
	work := func() {
		defer q.batches.Done()
		batch()
	}
	q.mu.Lock()
	closed, taken := q.closed, false
	if !closed {
		q.batches.Add(1)
		taken = take(work)
	}
	q.mu.Unlock()
	switch {
	case closed:
		refused()
	case !taken:
		go work()
	}
}

// Close refuses what comes and waits for what is under way. A second call waits too.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed && q.stores != nil {
		close(q.stores)
	}
	q.closed = true
	q.mu.Unlock()
	q.batches.Wait()
}
