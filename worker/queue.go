package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/jobqueue"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
)

// job is one store or load. answered and isFinal are guarded by the queue; what is between them
// and ctx is the job's own goroutine's.
type job struct {
	id    uint64
	load  *connector.LoadJob // one of the two
	store *connector.StoreBatch
	after int // the engine's event, -1 for none; of a job that came ahead once it is final
	// final is closed when the bytes of a store that came ahead of them are there; nil: they were.
	final   chan struct{}
	bytes   int64
	arrived time.Time
	ctx     context.Context // done when the job is cancelled or the session ends
	cancel  context.CancelFunc
	turn    chan struct{} // has one element when a piece was granted
	loop    *pulse.Loop   // of the goroutine that runs the job
	waited  time.Duration // to begin, for turns, and rested

	answered, isFinal bool
}

// kind is the Result's.
func (j *job) kind() string {
	if j.load != nil {
		return connector.TypeLoad
	}
	return connector.TypeStore
}

func (j *job) queueKind() jobqueue.Kind {
	if j.load != nil {
		return jobqueue.Load
	}
	return jobqueue.Store
}

// part names a part of a store job.
func (j *job) part(i int) connector.JobPart { return connector.JobPart{Job: j.id, Part: i} }

// schedule is the jobs of all sessions: who begins, and whose piece is copied
// next. The rules are jobqueue's; here are the lock and those who wait.
type schedule struct {
	interval time.Duration // of the rules' ticks
	mu       sync.Mutex
	rules    *jobqueue.Queue
	sessions map[uint64]*queue
	next     uint64
	ticked   time.Time // when the rules' last tick was
	// loadsFirst: there are loads that stores wait for. It is set with the lock, at
	// unlock, and read without.
	loadsFirst atomic.Bool
}

// newSchedule returns a schedule in which a load that does nothing for the time
// patience holds up no store.
func newSchedule(limits jobqueue.Limits, patience time.Duration) *schedule {
	return &schedule{interval: max(patience/2, time.Millisecond), rules: jobqueue.New(limits), sessions: map[uint64]*queue{}}
}

// open adds a session. begin is called with each load that may begin, under the
// lock: it must return at once.
func (s *schedule) open(begin func(*job)) *queue {
	s.mu.Lock()
	defer s.unlock()
	s.next++
	q := &queue{all: s, session: s.next, begin: begin, live: map[uint64]*job{}}
	q.changed = sync.NewCond(&s.mu)
	s.sessions[q.session] = q
	s.rules.Open(q.session)
	return q
}

// unlock is the end of whatever may have changed the rules' state.
func (s *schedule) unlock() {
	s.loadsFirst.Store(s.rules.LoadsFirst())
	s.mu.Unlock()
}

// grantLocked wakes those whose piece may begin.
func (s *schedule) grantLocked() {
	for id, ok := s.rules.Next(); ok; id, ok = s.rules.Next() {
		s.sessions[id.Session].live[id.Job].turn <- struct{}{}
	}
}

// age ticks the rules when it is time. Those call it who wait: nobody else would
// gain by it.
func (s *schedule) age() {
	s.mu.Lock()
	defer s.unlock()
	if now := time.Now(); now.Sub(s.ticked) >= s.interval {
		s.ticked = now
		s.rules.Tick()
		s.grantLocked()
	}
}

// tick makes the store pipelines that wait go round once.
func (s *schedule) tick() {
	s.mu.Lock()
	defer s.unlock()
	for _, q := range s.sessions {
		q.ticks++
		q.changed.Broadcast()
	}
}

func (s *schedule) stats() QueueStats {
	s.mu.Lock()
	defer s.unlock()
	return s.rules.Stats()
}

// queue holds a session's jobs from their arrival to their result. It decides who
// answers a job: the reader takes one out that has not begun, whoever runs it
// finishes one that has. Both are one step under the lock, so that a job is
// answered once.
type queue struct {
	all     *schedule
	session uint64
	begin   func(*job)

	// Guarded by all.mu.
	changed *sync.Cond
	live    map[uint64]*job // waiting or running
	closed  bool
	ticks   uint64 // how often the pipeline was asked to go round
}

func (q *queue) key(job uint64) jobqueue.ID { return jobqueue.ID{Session: q.session, Job: job} }

// add queues a job. It returns the stores that had to make room, which the caller
// answers.
func (q *queue) add(j *job) (dropped []*job, err error) {
	q.all.mu.Lock()
	defer q.all.unlock()
	out, err := q.all.rules.Offer(q.key(j.id), j.queueKind(), j.bytes)
	if err != nil {
		return nil, err
	}
	for _, id := range out {
		dropped = append(dropped, q.live[id])
		q.live[id].cancel()
		delete(q.live, id)
	}
	q.live[j.id] = j
	q.beginLocked()
	q.changed.Broadcast()
	return dropped, nil
}

// beginLocked begins the loads that may.
func (q *queue) beginLocked() {
	if q.closed {
		return
	}
	for id, ok := q.all.rules.Begin(q.session, jobqueue.Load); ok; id, ok = q.all.rules.Begin(q.session, jobqueue.Load) {
		q.begin(q.live[id.Job])
	}
}

// nextStore waits for a store to begin with. It returns no job when there was a
// tick since *seen, and open false when the queue is closed.
func (q *queue) nextStore(seen *uint64) (j *job, open bool) {
	q.all.mu.Lock()
	defer q.all.unlock()
	for !q.closed {
		if id, ok := q.all.rules.Begin(q.session, jobqueue.Store); ok {
			return q.live[id.Job], true
		}
		if *seen != q.ticks {
			*seen = q.ticks
			return nil, true
		}
		q.changed.Wait()
	}
	return nil, false
}

// take removes a job that waits, which the caller then answers. A job that runs
// is told to stop, and nil is returned: who runs it answers. So it is for a job
// that is not known: its result is on its way.
func (q *queue) take(id uint64) *job {
	q.all.mu.Lock()
	defer q.all.unlock()
	j := q.live[id]
	if j == nil {
		return nil
	}
	if !q.all.rules.Waits(q.key(id)) {
		j.cancel()
		return nil
	}
	q.endLocked(j)
	return j
}

// finish ends a job that ran. It reports whether the caller answers it.
func (q *queue) finish(j *job) bool {
	q.all.mu.Lock()
	defer q.all.unlock()
	if q.live[j.id] == j {
		q.endLocked(j)
	}
	return !j.answered
}

func (q *queue) endLocked(j *job) {
	j.cancel()
	delete(q.live, j.id)
	q.all.rules.End(q.key(j.id))
	q.beginLocked()
	q.all.grantLocked()
}

// disown marks a live job as answered while it goes on: the fault that the fence
// forbids. It reports whether the caller answers it.
func (q *queue) disown(id uint64) *job {
	q.all.mu.Lock()
	defer q.all.unlock()
	j := q.live[id]
	if j == nil || j.answered {
		return nil
	}
	j.answered = true
	return j
}

// known reports whether a job is live.
func (q *queue) known(id uint64) bool {
	q.all.mu.Lock()
	defer q.all.unlock()
	return q.live[id] != nil
}

// close ends the pipeline and begins no load any more. The jobs are dropped
// unanswered: nobody is there to hear.
func (q *queue) close() {
	q.all.mu.Lock()
	defer q.all.unlock()
	q.closed = true
	for _, j := range q.live {
		j.cancel()
	}
	q.changed.Broadcast()
}

// leave takes the session out of the schedule.
//
// REQUIRES: it is closed, and none of its jobs runs.
func (q *queue) leave() {
	q.all.mu.Lock()
	defer q.all.unlock()
	q.all.rules.Close(q.session)
	delete(q.all.sessions, q.session)
	q.all.grantLocked()
}
