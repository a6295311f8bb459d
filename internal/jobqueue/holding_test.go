package jobqueue

import "testing"

// offer offers a job and begins what may of its kind.
func offer(t *testing.T, q *Queue, id ID, kind Kind, bytes int64) (begun bool) {
	t.Helper()
	if _, err := q.Offer(id, kind, bytes); err != nil {
		t.Fatal(err)
	}
	got, ok := q.Begin(id.Session, kind)
	if ok && got != id {
		t.Fatalf("%v was begun, want %v", got, id)
	}
	return ok
}

func wantNext(t *testing.T, q *Queue, want ID, wantOK bool) {
	t.Helper()
	if got, ok := q.Next(); ok != wantOK || ok && got != want {
		t.Fatalf("granted %v, %v; want %v, %v", got, ok, want, wantOK)
	}
}

// A load that hangs, in a copy or before it asks for one, holds up a store for two
// ticks, and no store after; when it goes on stores wait for it again.
func TestALoadThatHangsHoldsUpNoStore(t *testing.T) {
	for name, hang := range map[string]func(q *Queue, load ID){
		"in a copy":         func(q *Queue, load ID) { q.Ask(load, 1); q.Next() },
		"before its copies": func(*Queue, ID) {},
	} {
		t.Run(name, func(t *testing.T) {
			q := New(testLimits)
			q.Open(1)
			q.Open(2)
			load, store := ID{1, 1}, ID{2, 1}
			offer(t, q, load, Load, 1)
			offer(t, q, store, Store, 1)
			hang(q, load)
			q.Ask(store, 1)
			wantNext(t, q, ID{}, false)
			q.Tick()
			wantNext(t, q, ID{}, false)
			q.Tick()
			for range 3 {
				wantNext(t, q, store, true)
				q.Return(store)
				q.Ask(store, 1)
			}
			q.Withdraw(store)
			if q.sessions[1].jobs[1].state == moving {
				q.Return(load)
			} else {
				q.Ask(load, 1)
			}
			q.Ask(store, 1)
			if id, ok := q.Next(); ok && id == store {
				t.Fatal("a store does not wait for a load that goes on")
			}
		})
	}
}

// The others of a session that has a load that hangs move on: stores wait for them
// as ever, and are passed over no oftener.
func TestALoadThatHangsIsNoReasonToGoBeforeOthers(t *testing.T) {
	q := New(testLimits)
	q.Open(1)
	hangs, moves, store := ID{1, 1}, ID{1, 2}, ID{1, 3}
	offer(t, q, hangs, Load, 1)
	offer(t, q, moves, Load, 1)
	offer(t, q, store, Store, 1)
	q.Ask(store, 1)
	for n := range testLimits.PassedOver {
		q.Tick()
		q.Ask(moves, 1)
		wantNext(t, q, moves, true)
		wantNext(t, q, store, n == testLimits.PassedOver-1)
		q.Return(moves)
	}
}

// Loads that wait for a slow tier take no place: others begin, as many as may wait.
func TestLoadsThatWaitForATierTakeNoPlace(t *testing.T) {
	q := New(testLimits)
	q.Open(1)
	job := uint64(0)
	for range testLimits.Jobs {
		job++
		if !offer(t, q, ID{1, job}, Load, 1) {
			t.Fatalf("load %d waits for ones that wait for a tier", job)
		}
		q.Aside(ID{1, job}, true)
	}
	job++
	if offer(t, q, ID{1, job}, Load, 1) {
		t.Errorf("begun beside %d that wait for a tier, and nothing bounds them", testLimits.Jobs)
	}
	q.Aside(ID{1, 1}, false)
	if id, ok := q.Begin(1, Load); !ok || id.Job != job {
		t.Errorf("begun %v, %v after one went on", id, ok)
	}
}

// A short load begins beside long ones that have all places; one that is not short
// waits for a place, in order, however many short ones there are.
func TestAShortLoadDoesNotWaitForAPlace(t *testing.T) {
	limits := Limits{Jobs: 5, Bytes: 1 << 20, AllBytes: 1 << 20, Loads: 3, LoadPieces: 2, PassedOver: 4}
	q := New(limits)
	q.Open(1)
	job := uint64(0)
	next := func(bytes int64) bool { job++; return offer(t, q, ID{1, job}, Load, bytes) }
	for range limits.Loads {
		if !next(800) {
			t.Fatal("a place is free, and a load waits")
		}
	}
	if next(101) {
		t.Fatal("a load that is not short takes a place of the short")
	}
	waits := ID{1, job}
	for n := range limits.Loads {
		if !next(100) {
			t.Fatalf("the short load %d waits for long ones", n)
		}
	}
	if next(1) {
		t.Fatal("there is no end of short loads")
	}
	q.End(ID{1, 1})
	if id, ok := q.Begin(1, Load); !ok || id != waits {
		t.Errorf("begun %v, %v; want %v, which has waited longest", id, ok, waits)
	}
}

// Stores of all sessions together have a bound; loads do not suffer by it.
func TestStoresOfAllSessionsAreBounded(t *testing.T) {
	q := New(testLimits)
	for session := range uint64(3) {
		q.Open(session)
		offer(t, q, ID{session, 1}, Store, 400)
	}
	for session, want := range []error{nil, ErrFull, ErrFull} {
		if _, err := q.Offer(ID{uint64(session), 2}, Store, 500); err != want {
			t.Errorf("session %d: %v, want %v", session, err, want)
		}
	}
	for session := range uint64(3) {
		if dropped, err := q.Offer(ID{session, 3}, Load, 100); err != nil || dropped != nil {
			t.Errorf("a load of session %d: dropped %v, %v", session, dropped, err)
		}
	}
	q.Open(3)
	if _, err := q.Offer(ID{3, 1}, Store, 900); err != nil {
		t.Errorf("a session's only job: %v", err)
	}
}
