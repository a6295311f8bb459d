package jobqueue

import (
	"errors"
	"slices"
)

// Kind of a job.
type Kind uint8

// The kinds of jobs.
const (
	Load Kind = iota
	Store
	kinds
)

// ID names a job. A session's ids are its own.
type ID struct{ Session, Job uint64 }

// Limits of a queue; every one is at least 1.
type Limits struct {
	// Jobs bounds the jobs of a kind that wait, Bytes what the descriptions take of
	// all that wait or are begun; both are by session. A session's only job is always
	// taken.
	Jobs  int
	Bytes int64
	// AllBytes bounds what Bytes does, of all sessions. Beyond it no store is taken.
	AllBytes int64
	// Loads bounds the begun loads of a session: so many of any size, and as many
	// short ones. Those that are aside are not counted; Jobs bounds those.
	Loads int
	// LoadPieces bounds the pieces of loads that are under way, of a session. Of its
	// stores there is one, as there is one store.
	LoadPieces int
	// PassedOver is how many pieces of loads may begin while one of a store waits.
	PassedOver int
}

// Errors of Offer.
var (
	ErrFull      = errors.New("queue full")
	ErrDuplicate = errors.New("the job id is in use")
)

// state of a job.
type state uint8

const (
	waiting state = iota // to begin
	begun                // asks the store, plans, waits for a slow tier
	asking               // for its next piece
	moving               // a piece
)

// place is what a begun load takes of the limits.
type place uint8

const (
	anySize place = iota
	shortOnly
	places
)

// shortShare is how many times a short load's description goes into the mean one
// of the loads that have the places for any size.
const shortShare = 8

// job is one job of the queue.
type job struct {
	id    ID
	kind  Kind
	bytes int64
	state state
	place place  // of a begun load
	aside bool   // it waits for something that stores need not wait for
	moved uint64 // the tick at which a begun load did something last
	holds bool   // it is counted in Queue.active
	seq   uint64 // of arrival
	asked uint64 // when it began to ask, among all that do
	piece int64  // that it asks for
	tag   int64  // on the session's clock
}

// session is what the queue knows of one.
//
// INVARIANT: bytes is the sum over jobs; begun, per kind, counts those not waiting;
// taken and takenBytes, per place, add up the begun loads that are not aside.
type session struct {
	id      uint64
	jobs    map[uint64]*job
	waiting [kinds][]*job // in the order of arrival
	begun   [kinds]int
	taken   [places]int
	moving  [kinds]int
	asking  [kinds][]*job
	bytes   int64
	clock   int64 // the tag of the load that was granted last

	takenBytes [places]int64
}

// Queue is the jobs of all sessions. It is not safe for concurrent use.
type Queue struct {
	limits   Limits
	sessions map[uint64]*session
	order    []uint64 // the sessions' ids, so that what is done is the same each time
	seq      uint64   // of jobs and what they ask for

	bytes  int64  // of all sessions
	ticks  uint64 // so far
	active int    // loads that stores wait for: begun, not aside, and not stalled
	passed int    // pieces of loads begun while one of a store waits
}

// New returns an empty queue.
func New(limits Limits) *Queue {
	return &Queue{limits: limits, sessions: map[uint64]*session{}}
}

// Open adds a session.
//
// REQUIRES: it is not open.
func (q *Queue) Open(id uint64) {
	q.sessions[id] = &session{id: id, jobs: map[uint64]*job{}}
	q.order = append(q.order, id)
}

// Close removes a session and all of its jobs.
//
// REQUIRES: none of them goes on.
func (q *Queue) Close(id uint64) {
	for job := range q.sessions[id].jobs {
		q.End(ID{id, job})
	}
	delete(q.sessions, id)
	q.order = slices.DeleteFunc(q.order, func(other uint64) bool { return other == id })
}

// Offer adds a job of an open session, whose description takes so many bytes.
// The stores that it takes the place of are dropped, newest first.
func (q *Queue) Offer(id ID, kind Kind, bytes int64) (dropped []uint64, err error) {
	s := q.sessions[id.Session]
	if s.jobs[id.Job] != nil {
		return nil, ErrDuplicate
	}
	if len(s.waiting[kind]) >= q.limits.Jobs {
		return nil, ErrFull
	}
	if kind == Store && len(s.jobs) > 0 && q.bytes+bytes > q.limits.AllBytes {
		return nil, ErrFull
	}
	if over := s.bytes + bytes - q.limits.Bytes; over > 0 && len(s.jobs) > 0 {
		room := int64(0)
		if kind == Load {
			for _, w := range slices.Backward(s.waiting[Store]) {
				if room >= over {
					break
				}
				room += w.bytes
				dropped = append(dropped, w.id.Job)
			}
		}
		if room < over && len(dropped) < len(s.jobs) {
			return nil, ErrFull // in vain: nothing is dropped
		}
		for _, store := range dropped {
			q.End(ID{id.Session, store})
		}
	}
	q.seq++
	j := &job{id: id, kind: kind, bytes: bytes, seq: q.seq}
	s.jobs[id.Job] = j
	s.waiting[kind] = append(s.waiting[kind], j)
	s.bytes += bytes
	q.bytes += bytes
	return dropped, nil
}

// Begin takes the next job of a kind that a session may begin with.
func (q *Queue) Begin(sessionID uint64, kind Kind) (id ID, ok bool) {
	s := q.sessions[sessionID]
	at, place := 0, anySize
	if kind == Load {
		at, place = q.nextLoad(s)
	} else if s.begun[kind] >= 1 {
		at = -1
	}
	if at < 0 || at >= len(s.waiting[kind]) {
		return ID{}, false
	}
	j := s.waiting[kind][at]
	s.waiting[kind] = slices.Delete(s.waiting[kind], at, at+1)
	s.begun[kind]++
	j.state, j.place = begun, place
	if kind == Load {
		s.take(j, 1)
		q.movedOn(j)
	}
	return j.id, true
}

// nextLoad returns the number of the load that may begin, among those that wait,
// and the place that it takes; -1 for none.
func (q *Queue) nextLoad(s *session) (at int, p place) {
	if s.asides() >= q.limits.Jobs {
		return -1, anySize
	}
	if s.taken[anySize] < q.limits.Loads {
		return 0, anySize
	}
	if s.taken[shortOnly] >= q.limits.Loads {
		return -1, shortOnly
	}
	short := s.takenBytes[anySize] / int64(s.taken[anySize]) / shortShare
	return slices.IndexFunc(s.waiting[Load], func(j *job) bool { return j.bytes <= short }), shortOnly
}

// take adds so many times a begun load to what has its place, or takes it away.
func (s *session) take(j *job, times int) {
	s.taken[j.place] += times
	s.takenBytes[j.place] += int64(times) * j.bytes
}

// asides returns how many loads are aside.
func (s *session) asides() int { return s.begun[Load] - s.taken[anySize] - s.taken[shortOnly] }

// End removes a job, whatever its state. It reports whether it had begun.
//
// REQUIRES: the queue has it.
func (q *Queue) End(id ID) (ran bool) {
	s := q.sessions[id.Session]
	j := s.jobs[id.Job]
	switch j.state {
	case waiting:
		at := slices.Index(s.waiting[j.kind], j)
		s.waiting[j.kind] = slices.Delete(s.waiting[j.kind], at, at+1)
	case asking:
		q.withdraw(s, j)
	case moving:
		s.moving[j.kind]--
	case begun:
	}
	if ran = j.state != waiting; ran {
		s.begun[j.kind]--
		if j.kind == Load && !j.aside {
			s.take(j, -1)
		}
		q.hold(j, false)
	}
	delete(s.jobs, id.Job)
	s.bytes -= j.bytes
	q.bytes -= j.bytes
	return ran
}

// Has reports whether the queue has a job.
func (q *Queue) Has(id ID) bool { return q.sessions[id.Session].jobs[id.Job] != nil }

// Waits reports whether a job that the queue has is still to begin.
func (q *Queue) Waits(id ID) bool { return q.sessions[id.Session].jobs[id.Job].state == waiting }

// Stats tells what a queue holds.
type Stats struct {
	// WaitingLoads and WaitingStores have not begun, Running have. Bytes is the
	// memory that their descriptions take.
	WaitingLoads, WaitingStores, Running int
	Bytes                                int64
}

// Stats adds the sessions up.
func (q *Queue) Stats() (all Stats) {
	for _, s := range q.sessions {
		all.WaitingLoads += len(s.waiting[Load])
		all.WaitingStores += len(s.waiting[Store])
		all.Running += s.begun[Load] + s.begun[Store]
		all.Bytes += s.bytes
	}
	return all
}
