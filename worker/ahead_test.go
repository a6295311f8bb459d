package worker_test

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// sendAhead sends a store before its bytes are there.
func (e *engine) sendAhead(job *connector.StoreBatch) {
	e.send(&connector.Ahead{Type: connector.TypeAhead, Job: job.Job})
	e.send(job)
}

func (e *engine) makeFinal(jobs ...uint64) {
	e.send(&connector.Final{Type: connector.TypeFinal, Jobs: jobs})
}

// open waits until so many puts are open.
func (r *rig) open(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); r.store.OpenPuts() != n; runtime.Gosched() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d puts are open, want %d", r.store.OpenPuts(), n)
		}
	}
}

// A store that comes ahead has its places before its bytes are there, and is
// stored with those that are there at its end.
func TestAStoreAheadIsReadWhenItIsFinal(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	job := e.storeJob("p", ids(1, 4))
	e.sendAhead(job)
	r.open(4)
	e.ping()
	if n := r.gate.copies.Load(); n != 0 {
		t.Fatalf("%d batches were copied before the bytes were there", n)
	}
	for id := range uint32(4) {
		e.fill(1+id, byte(0x40+id))
	}
	e.makeFinal(job.Job)
	res := expect[*connector.Result](e.peer)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Chunks != 4 || res.Asked != 4 {
		t.Errorf("%+v", res)
	}
	for id := range 4 {
		if got := r.store.Bytes(0, hashAt("p", id), 0); !bytes.Equal(got, bytes.Repeat([]byte{byte(0x40 + id)}, blockBytes)) {
			t.Errorf("chunk %d has the bytes of another moment", id)
		}
	}
	e.makeFinal(job.Job, 999) // it has ended, and there is none such
	e.ping()
	r.settled()
}

// The event that a store waits for is the one in force when it is made final.
func TestAStoreAheadWaitsForTheLastEvent(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	e.send(&connector.After{Type: connector.TypeAfter, Event: 1})
	job := e.storeJob("p", ids(1, 2))
	e.sendAhead(job)
	r.open(2)
	e.send(&connector.After{Type: connector.TypeAfter, Event: 2})
	e.makeFinal(job.Job)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusOK, "")
	if r.gate.after.Load() != 2 {
		t.Errorf("the copies waited for event %d", r.gate.after.Load())
	}
}

// Whatever ends a store that came ahead, no byte is read and no place is kept.
func TestAStoreAheadThatIsNeverFinal(t *testing.T) {
	for name, end := range map[string]func(*engine, uint64){
		"given up": func(e *engine, job uint64) {
			e.giveUp(job)
			want(e.t, expect[*connector.Result](e.peer), job, connector.StatusCancelled, "cancelled")
			e.makeFinal(job)
		},
		"given up before it is final": func(e *engine, job uint64) {
			e.board.SetWord(int(job%jobSlots), job|connector.CancelBit)
			e.makeFinal(job) // the word alone cancels
			want(e.t, expect[*connector.Result](e.peer), job, connector.StatusCancelled, "cancelled")
		},
		"the engine dies": func(e *engine, _ uint64) { e.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			e := r.engine()
			e.t = t
			job := e.storeJob("p", ids(1, 4))
			e.sendAhead(job)
			r.open(4)
			end(e, job.Job)
			r.open(0)
			if n := r.gate.copies.Load(); n != 0 {
				t.Errorf("%d batches were copied", n)
			}
			if r.store.Bytes(0, hashAt("p", 0), 0) != nil {
				t.Error("something was published")
			}
		})
	}
}

// Of a request that is preempted in the step nothing is stored; the others of the
// job are.
func TestAPreemptionBeforeAStoreAheadIsFinal(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	job := e.batch(e.part("p", ids(1, 2)), e.part("q", ids(3, 2)))
	e.sendAhead(job)
	r.open(4)
	e.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-p"}})
	e.makeFinal(job.Job)
	res := expect[*connector.Result](e.peer)
	if res.Status != connector.StatusFailed || res.Reason != "retired" || !bytes.Equal(res.Incomplete, table(0)) || res.Chunks != 2 {
		t.Errorf("%+v", res)
	}
	if r.store.Bytes(0, hashAt("p", 0), 0) != nil || r.store.Bytes(0, hashAt("q", 1), 0) == nil {
		t.Error("not what is to be there")
	}
	r.open(0)
}

// What another engine had underway when a store came ahead is asked for again at
// its end: it is stored by then, or given up.
func TestWhatWasUnderwayAheadIsAskedForAgain(t *testing.T) {
	for _, stored := range []bool{true, false} {
		r := newRig(t, nil)
		a, b := r.engine(), r.engine()
		first := a.storeJob("q", ids(1, 2))
		a.sendAhead(first)
		r.open(2)
		// A request in front of it and one behind, of which the last is preempted.
		second := b.batch(b.part("o", ids(5, 1)), b.part("q", ids(1, 2)), b.part("s", ids(6, 1)))
		b.sendAhead(second)
		r.open(4)
		if stored {
			a.makeFinal(first.Job)
			want(t, expect[*connector.Result](a.peer), first.Job, connector.StatusOK, "")
		} else {
			a.giveUp(first.Job)
			want(t, expect[*connector.Result](a.peer), first.Job, connector.StatusCancelled, "cancelled")
		}
		r.open(2)
		b.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-s"}})
		b.makeFinal(second.Job)
		res := expect[*connector.Result](b.peer)
		chunks, existing := 1, 2
		if !stored {
			chunks, existing = 3, 0
		}
		if res.Chunks != chunks || res.Existing != existing || !bytes.Equal(res.Incomplete, table(2)) {
			t.Errorf("stored by the other: %v: %+v", stored, res)
		}
		if got := r.store.Bytes(0, hashAt("q", 1), 0); !bytes.Equal(got, b.block(2)) {
			t.Error("the chunk has other bytes")
		}
		if r.store.Bytes(0, hashAt("s", 0), 0) != nil {
			t.Error("a preempted request was stored")
		}
		r.settled()
	}
}

// How long the engine's step takes is no business of the service manager's.
func TestAStoreAheadBeats(t *testing.T) {
	var rounds atomic.Int64
	group := pulse.New(func() { rounds.Add(1) })
	r := newRig(t, func(cfg *worker.Config) { cfg.Pulse = group })
	e := r.engine()
	accepting := group.Join() // as a daemon's other loops
	defer accepting.Leave()
	job := e.storeJob("p", ids(1, 4))
	e.sendAhead(job)
	r.open(4)
	r.tickUntil(&rounds, rounds.Load()+4, accepting)
	e.makeFinal(job.Job)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusOK, "")
}
