package prefixindex

import "sync"

// turns are taken by those who change a space. Whoever has the turn does what the others have
// ready, too, while they read and hash what comes next. With nothing but the lock all of them would
// stand in a row before it, each to be woken for some microseconds of work, and to find what it
// needs in another processor's cache.
type turns struct {
	mu    sync.Mutex // guards all below
	taken bool
	// waiting are those whose change is to be made, in the order in which they came. Who has the
	// turn takes all of them at once; batch is memory for that.
	waiting, batch []*turn
}

// turn is one's way to change a space.
type turn struct {
	// change is made with the space locked, by whoever has the turn.
	change func()
	// made tells who waits that the change was made, or else that the turn is its own now. It
	// has room for one.
	made chan bool
}

func newTurn(change func()) *turn { return &turn{change: change, made: make(chan bool, 1)} }

// mostTurns is about how many changes of others are made before the next one has the turn: who has it
// gets on with nothing else.
const mostTurns = 256

// take returns when the turn's change was made.
//
// REQUIRES: the space is not locked, and nobody else takes t.
func (s *space) take(t *turn) {
	q := &s.turns
	if q.enter(t) && <-t.made {
		return
	}
	s.make(t)
	for made := 0; ; {
		batch := q.next(made >= mostTurns)
		if len(batch) == 0 {
			return
		}
		for _, other := range batch {
			s.make(other)
			other.made <- true
		}
		made += len(batch)
	}
}

// make makes a change. Queries come in between two of them.
func (s *space) make(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.change()
}

// enter takes the turn, or has t wait for who has it.
func (q *turns) enter(t *turn) (waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.taken {
		q.taken = true
		return false
	}
	q.waiting = append(q.waiting, t)
	return true
}

// next returns those that wait now, up to the next call. None: the turn is given up, with enough made
// to the first of them.
func (q *turns) next(enough bool) []*turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.waiting) == 0:
		q.taken = false
		return nil
	case enough:
		first := q.waiting[0]
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[1:])]
		first.made <- false
		return nil
	}
	q.waiting, q.batch = q.batch[:0], q.waiting
	return q.batch
}
