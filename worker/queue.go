package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/store"
)

// job is one store or load. What is below the line is guarded by the queue.
type job struct {
	id      uint64
	load    *connector.LoadJob // one of the two
	store   *connector.StoreBatch
	bytes   int64
	arrived time.Time
	// namespace is the name under which a store puts, if it was open when the job
	// arrived.
	namespace store.Namespace
	named     bool
	ctx       context.Context // done when the job is cancelled or the session ends
	cancel    context.CancelFunc
	loop      *pulse.Loop // of the pipeline that runs the job

	answered bool
}

// kind is the Result's.
func (j *job) kind() string {
	if j.load != nil {
		return connector.TypeLoad
	}
	return connector.TypeStore
}

// part names a part of a store job.
func (j *job) part(i int) connector.JobPart { return connector.JobPart{Job: j.id, Part: i} }

// Refusals of a job.
var (
	errQueueFull = errors.New("queue full")
	errDuplicate = errors.New("the job id is in use")
)

// queue holds a session's jobs from their arrival to their result. It decides
// who answers a job: the reader takes one out that has not begun, a pipeline
// finishes one that has. Both are one step under the lock, so that a job is
// answered once.
//
// Loads go first: while one waits no store begins, because a request waits for
// its load and nobody waits for a store.
type queue struct {
	maxJobs  int
	maxBytes int64

	mu      sync.Mutex
	changed *sync.Cond
	loads   []*job
	stores  []*job
	live    map[uint64]*job // waiting or running
	bytes   int64           // of live jobs
	closed  bool
	ticks   uint64 // how often the pipelines were asked to go round
}

func newQueue(maxJobs int, maxBytes int64) *queue {
	q := &queue{maxJobs: maxJobs, maxBytes: maxBytes, live: map[uint64]*job{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// add queues a job. One job is always taken, however large it is.
func (q *queue) add(j *job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.live[j.id] != nil {
		return errDuplicate
	}
	list := q.listOf(j)
	if len(*list) >= q.maxJobs || len(q.live) > 0 && q.bytes+j.bytes > q.maxBytes {
		return errQueueFull
	}
	*list = append(*list, j)
	q.live[j.id] = j
	q.bytes += j.bytes
	q.changed.Broadcast()
	return nil
}

func (q *queue) listOf(j *job) *[]*job {
	if j.load != nil {
		return &q.loads
	}
	return &q.stores
}

// nextLoad waits for a load to begin with. It returns no job when there was a
// tick since *seen, and open false when the queue is closed.
func (q *queue) nextLoad(seen *uint64) (j *job, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && len(q.loads) == 0 {
		if q.tickedLocked(seen) {
			return nil, true
		}
		q.changed.Wait()
	}
	if q.closed {
		return nil, false
	}
	j = q.popLocked(&q.loads)
	if len(q.loads) == 0 {
		q.changed.Broadcast() // stores may begin
	}
	return j, true
}

// nextStore waits for a store to begin with; see nextLoad.
func (q *queue) nextStore(seen *uint64) (j *job, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && (len(q.stores) == 0 || len(q.loads) > 0) {
		if q.tickedLocked(seen) {
			return nil, true
		}
		q.changed.Wait()
	}
	if q.closed {
		return nil, false
	}
	return q.popLocked(&q.stores), true
}

// tick makes pipelines that wait go round once.
func (q *queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticks++
	q.changed.Broadcast()
}

func (q *queue) tickedLocked(seen *uint64) bool {
	ticked := *seen != q.ticks
	*seen = q.ticks
	return ticked
}

func (q *queue) popLocked(list *[]*job) *job {
	j := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	return j
}

// take removes a job that waits, which the caller then answers. A job that runs
// is told to stop, and nil is returned: its pipeline answers. So it is for a job
// that is not known: its result is on its way.
func (q *queue) take(id uint64) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.live[id]
	if j == nil {
		return nil
	}
	list := q.listOf(j)
	at := slices.Index(*list, j)
	if at < 0 {
		j.cancel()
		return nil
	}
	*list = slices.Delete(*list, at, at+1)
	q.changed.Broadcast()
	q.endLocked(j)
	return j
}

// finish ends a job that ran. It reports whether the caller answers it.
func (q *queue) finish(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.live[j.id] == j {
		q.endLocked(j)
	}
	return !j.answered
}

func (q *queue) endLocked(j *job) {
	j.cancel()
	delete(q.live, j.id)
	q.bytes -= j.bytes
}

// disown marks a live job as answered while it goes on: the fault that the fence
// forbids. It reports whether the caller answers it.
func (q *queue) disown(id uint64) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.live[id]
	if j == nil || j.answered {
		return nil
	}
	j.answered = true
	return j
}

// known reports whether a job is live.
func (q *queue) known(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.live[id] != nil
}

// close wakes the pipelines, which then end. The jobs are dropped unanswered:
// nobody is there to hear.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, j := range q.live {
		j.cancel()
	}
	q.loads, q.stores = nil, nil
	q.changed.Broadcast()
}
