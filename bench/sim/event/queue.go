package event

import "time"

// Queue runs events. The zero value is at time 0 and empty.
type Queue struct {
	now      time.Duration
	sequence uint64
	heap     []entry
}

type entry struct {
	at       time.Duration
	sequence uint64
	run      func()
}

func (e *entry) before(o *entry) bool {
	return e.at < o.at || e.at == o.at && e.sequence < o.sequence
}

// Now is the virtual time.
func (q *Queue) Now() time.Duration { return q.now }

// Len is the number of events to come.
func (q *Queue) Len() int { return len(q.heap) }

// At has run called at a time.
//
// REQUIRES: at is not before Now.
func (q *Queue) At(at time.Duration, run func()) {
	if at < q.now {
		panic("BUG: an event in the past")
	}
	q.sequence++
	q.heap = append(q.heap, entry{at, q.sequence, run})
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !q.heap[i].before(&q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// Step runs the next event; false if there is none.
func (q *Queue) Step() bool {
	if len(q.heap) == 0 {
		return false
	}
	next := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = entry{}
	q.heap = q.heap[:last]
	q.sift()
	q.now = next.at
	next.run()
	return true
}

func (q *Queue) sift() {
	i := 0
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.heap); child++ {
			if q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
