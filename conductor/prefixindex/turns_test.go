package prefixindex

import (
	"sync"
	"testing"
)

// Each change is made once and alone, and before take returns; the reader sees whole ones.
func TestTurns(t *testing.T) {
	const goroutines, each = 64, 200
	s := &space{}
	var made, twice int // guarded by the space
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			mine := 0
			own := newTurn(func() {
				made++
				twice += 2
				mine++
			})
			for n := range each {
				s.take(own)
				if mine != n+1 {
					t.Errorf("%d changes were made of %d", mine, n+1)
				}
			}
		})
	}
	all.Go(func() {
		for range each {
			s.mu.RLock()
			if twice != 2*made {
				t.Errorf("half a change was seen: %d and %d", made, twice)
			}
			s.mu.RUnlock()
		}
	})
	all.Wait()
	if made != goroutines*each || s.turns.taken || len(s.turns.waiting) != 0 {
		t.Errorf("%d changes were made of %d, taken: %v", made, goroutines*each, s.turns.taken)
	}
}

// Who has made enough changes of others hands the turn on, to the first that waits.
func TestTurnIsHandedOn(t *testing.T) {
	var q turns
	var waiting [4]*turn
	for i := range waiting {
		waiting[i] = newTurn(nil)
	}
	if q.enter(newTurn(nil)) {
		t.Fatal("the first one waits")
	}
	for _, w := range waiting {
		if !q.enter(w) {
			t.Fatal("two have the turn")
		}
	}
	if batch := q.next(true); batch != nil || !q.taken {
		t.Errorf("%d are to be made by who has made enough; taken: %v", len(batch), q.taken)
	}
	select {
	case made := <-waiting[0].made:
		if made {
			t.Error("a change was made that was not")
		}
	default:
		t.Error("nobody has the turn")
	}
	batch := q.next(false)
	if len(batch) != 3 || batch[0] != waiting[1] || batch[2] != waiting[3] {
		t.Errorf("%d wait, want the other three in their order", len(batch))
	}
	if batch := q.next(false); batch != nil || q.taken {
		t.Errorf("%d wait, taken: %v", len(batch), q.taken)
	}
}
