package event

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestOrder: events run by time, and at equal times in the order they came in,
// also those put in by events.
func TestOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type mark struct {
		at time.Duration
		n  int
	}
	var q Queue
	var ran, put []mark
	n := 0
	var add func(at time.Duration)
	add = func(at time.Duration) {
		m := mark{at, n}
		n++
		put = append(put, m)
		q.At(at, func() {
			if q.Now() != m.at {
				t.Fatalf("an event of %v ran at %v", m.at, q.Now())
			}
			ran = append(ran, m)
			if n < 5000 {
				add(q.Now() + time.Duration(rng.IntN(4)))
			}
		})
	}
	for range 300 {
		add(time.Duration(rng.IntN(50)))
	}
	for q.Step() {
	}
	if q.Len() != 0 || len(ran) != len(put) {
		t.Fatalf("%d of %d events ran, %d are left", len(ran), len(put), q.Len())
	}
	want := slices.Clone(put)
	slices.SortStableFunc(want, func(a, b mark) int { return int(a.at - b.at) })
	if !slices.Equal(ran, want) {
		t.Error("events did not run in order of time and insertion")
	}
}

func TestPast(t *testing.T) {
	var q Queue
	q.At(5, func() {})
	q.Step()
	defer func() {
		if recover() == nil {
			t.Error("an event in the past was taken")
		}
	}()
	q.At(4, func() {})
}
