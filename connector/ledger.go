package connector

import "container/list"

// MaxLedgerRequests bounds a ledger. An engine has a few thousand requests at
// most; one that never says "finished" must not fill our memory.
const MaxLedgerRequests = 1 << 16

// Ledger is one rank's memory of the requests whose blocks it stores: how far
// each has been saved and which of its jobs are under way. It is not safe for
// concurrent use.
//
// Request ids repeat: a preempted request comes back under its id with its
// blocks computed anew. A job that was begun before must not move the offset of
// the one that came after; therefore only a job that its request's entry lists
// counts, and retiring a request forgets the entry with its jobs.
//
// A job is known by its parts: each is of one request.
//
// Epochs: what an older epoch of the scheduler says is ignored, and a newer one
// forgets everything.
type Ledger struct {
	epoch    uint64
	max      int
	requests map[string]*list.Element // of *request, oldest first
	order    *list.List
	owner    map[JobPart]*request // of live parts
}

// JobPart names one part of a store job.
type JobPart struct {
	Job  uint64
	Part int
}

// request is an entry. INVARIANT: it is in requests, under its id, or retired.
type request struct {
	id       string
	offset   int // tokens saved from the first on, without a hole
	live     int // parts begun and not done
	finished bool
	retired  bool
}

// NewLedger returns an empty ledger of at most maxRequests.
func NewLedger(maxRequests int) *Ledger {
	l := &Ledger{max: maxRequests}
	l.clear()
	return l
}

func (l *Ledger) clear() {
	l.requests = map[string]*list.Element{}
	l.order = list.New()
	l.owner = map[JobPart]*request{}
}

// Epoch returns the newest epoch that a job was of, 0 before the first.
func (l *Ledger) Epoch() uint64 { return l.epoch }

// Begin notes a part of a job, of request id. It returns false for one of an
// older epoch, which must not be run.
//
// REQUIRES: no live part has this name.
func (l *Ledger) Begin(epoch uint64, id string, part JobPart) bool {
	if epoch < l.epoch {
		return false
	}
	if epoch > l.epoch {
		l.clear()
		l.epoch = epoch
	}
	element := l.requests[id]
	if element == nil {
		l.makeRoom()
		element = l.order.PushBack(&request{id: id})
		l.requests[id] = element
	}
	r := entry(element)
	// A finished id with jobs under way that gets another job is a new request
	// of the same name; what it shares with the old one is its content.
	r.finished = false
	r.live++
	l.owner[part] = r
	return true
}

// Offset returns how many tokens of the part's request are saved. ok is false
// when the request was retired since the job began: the part is void.
func (l *Ledger) Offset(part JobPart) (tokens int, ok bool) {
	r := l.owner[part]
	if r == nil || r.retired {
		return 0, false
	}
	return r.offset, true
}

// Advance notes that the part's request is saved up to tokens. It never moves
// back, and does nothing for a void part.
func (l *Ledger) Advance(part JobPart, tokens int) {
	if r := l.owner[part]; r != nil && !r.retired {
		r.offset = max(r.offset, tokens)
	}
}

// Done ends a part. A finished request is forgotten with its last one.
func (l *Ledger) Done(part JobPart) {
	r := l.owner[part]
	if r == nil {
		return
	}
	delete(l.owner, part)
	r.live--
	if r.finished && r.live == 0 {
		l.retire(r)
	}
}

// Finish retires a request once its jobs are done.
func (l *Ledger) Finish(id string) {
	element := l.requests[id]
	if element == nil {
		return
	}
	if r := entry(element); r.live > 0 {
		r.finished = true
	} else {
		l.retire(r)
	}
}

// Preempt retires a request at once; its jobs under way are void.
func (l *Ledger) Preempt(id string) {
	if element := l.requests[id]; element != nil {
		l.retire(entry(element))
	}
}

// Requests returns the number of requests that are known.
func (l *Ledger) Requests() int { return len(l.requests) }

// Live returns the number of parts that are begun and not done.
func (l *Ledger) Live() int { return len(l.owner) }

func (l *Ledger) retire(r *request) {
	if r.retired {
		return
	}
	r.retired = true
	if element := l.requests[r.id]; element != nil && entry(element) == r {
		l.order.Remove(element)
		delete(l.requests, r.id)
	}
}

// makeRoom forgets the oldest request when the ledger is full. That costs its
// next job the offset, so that it asks for everything again, and finds it.
func (l *Ledger) makeRoom() {
	for len(l.requests) >= l.max {
		oldest := l.order.Front()
		for oldest.Next() != nil && entry(oldest).live > 0 {
			oldest = oldest.Next()
		}
		l.retire(entry(oldest))
	}
}

func entry(e *list.Element) *request {
	r, ok := e.Value.(*request)
	if !ok {
		panic("BUG: the ledger's list holds something else")
	}
	return r
}
