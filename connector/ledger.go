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
// blocks computed anew, and a client may name its next request as its last. A
// job that was begun before must not move the offset of the one that came after;
// therefore a job counts for the entry that it was begun with, and preempting or
// finishing a request takes its entry's name away. The jobs of a preempted one
// are void; those of a finished one are not, as its blocks stay held for them.
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

// request is an entry. INVARIANT: it is in requests, under its id, or preempted
// or finished.
type request struct {
	id     string
	offset int // tokens saved from the first on, without a hole
	live   int // parts begun and not done
	void   bool
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
	r.live++
	l.owner[part] = r
	return true
}

// Offset returns how many tokens of the part's request are saved. ok is false
// when the request was preempted since the job began: the part is void.
func (l *Ledger) Offset(part JobPart) (tokens int, ok bool) {
	r := l.owner[part]
	if r == nil || r.void {
		return 0, false
	}
	return r.offset, true
}

// Advance notes that the part's request is saved up to tokens. It never moves
// back, and does nothing for a void part.
func (l *Ledger) Advance(part JobPart, tokens int) {
	if r := l.owner[part]; r != nil && !r.void {
		r.offset = max(r.offset, tokens)
	}
}

// Done ends a part.
func (l *Ledger) Done(part JobPart) {
	if r := l.owner[part]; r != nil {
		delete(l.owner, part)
		r.live--
	}
}

// Finish forgets a request; its jobs under way go on.
func (l *Ledger) Finish(id string) { l.forget(id) }

// Preempt forgets a request; its jobs under way are void.
func (l *Ledger) Preempt(id string) {
	if r := l.forget(id); r != nil {
		r.void = true
	}
}

// Requests returns the number of requests that are known.
func (l *Ledger) Requests() int { return len(l.requests) }

// Live returns the number of parts that are begun and not done.
func (l *Ledger) Live() int { return len(l.owner) }

// forget takes the name off the request that has it.
func (l *Ledger) forget(id string) *request {
	element := l.requests[id]
	if element == nil {
		return nil
	}
	l.order.Remove(element)
	delete(l.requests, id)
	return entry(element)
}

// makeRoom forgets the oldest request when the ledger is full. That costs its
// next job the offset, so that it asks for everything again, and finds it.
func (l *Ledger) makeRoom() {
	for len(l.requests) >= l.max {
		oldest := l.order.Front()
		for oldest.Next() != nil && entry(oldest).live > 0 {
			oldest = oldest.Next()
		}
		l.Preempt(entry(oldest).id)
	}
}

func entry(e *list.Element) *request {
	r, ok := e.Value.(*request)
	if !ok {
		panic("BUG: the ledger's list holds something else")
	}
	return r
}
