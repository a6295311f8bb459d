package worker_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// A load whose copy hangs, or whose question to the store does, holds up the stores
// of no engine, its own included.
func TestAStoreDoesNotWaitForALoadThatHangs(t *testing.T) {
	for _, inCopy := range []bool{true, false} {
		r := newRig(t, func(cfg *worker.Config) { cfg.LoadPatience = time.Millisecond })
		own, other := r.engine(), r.engine()
		stored(t, own, 2)
		hangs, goOn := make(chan struct{}), make(chan struct{})
		var gets atomic.Int64
		r.gate.armed.Store(inCopy)
		r.store.SetHook(func(call string) error {
			if call == "Get" && !inCopy && gets.Add(1) == 1 {
				close(hangs)
				<-goOn
			}
			return nil
		})
		load := own.loadJob("p", ids(20, 2))
		own.send(load)
		if inCopy {
			<-r.gate.entered
			r.gate.armed.Store(false)
		} else {
			<-hangs
		}
		for i, e := range []*engine{own, other} {
			store := e.storeJob([]string{"q", "r"}[i], ids(1, 5))
			want(t, e.do(store), store.Job, connector.StatusOK, "")
		}
		close(goOn)
		r.gate.unblock()
		want(t, expect[*connector.Result](own.peer), load.Job, connector.StatusOK, "")
		r.settled()
	}
}

// Loads that wait for a slower tier leave their places to others.
func TestLoadsThatWaitForATierHoldUpNoOther(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.LoadPipelines = 1 })
	e := r.engine()
	stored(t, e, 2)
	r.store.SetLoading(1 << 30)
	const loads = 3
	for n := range uint32(loads) {
		e.send(e.loadJob("p", ids(20+2*n, 2)))
		r.running(int(n) + 1)
	}
	r.store.SetLoading(0)
	for range loads {
		if res := expect[*connector.Result](e.peer); res.Status != connector.StatusOK {
			t.Errorf("%+v", res)
		}
	}
	r.settled()
}

// told keeps what an observer is told.
type told chan float64

func (o told) Observe(seconds float64) { o <- seconds }

// A job that was dropped or given up before it began has waited all its time; one
// that waited for its turns has not copied meanwhile.
func TestWaitsAreTold(t *testing.T) {
	took, wait, move := make(told, 10), make(told, 10), make(told, 10)
	r := newRig(t, func(cfg *worker.Config) {
		cfg.QueueJobs = 1
		cfg.StoreTimes = worker.JobTimes{Took: took, Wait: wait, Move: move}
	})
	e := r.engine()
	stored(t, e, 2)
	<-took
	<-wait
	<-move
	r.gate.armed.Store(true)
	load := e.loadJob("p", ids(20, 2))
	e.send(load)
	<-r.gate.entered
	first, given := e.storeJob("q", ids(1, 2)), e.storeJob("r", ids(3, 2))
	e.send(first)
	r.running(2)
	e.send(given)
	never := func() (waited float64) {
		t.Helper()
		all, waited := <-took, <-wait
		if waited > all {
			t.Errorf("of %v s a job that never began waited %v s", all, waited)
		}
		return waited
	}
	over := e.storeJob("s", ids(5, 2))
	want(t, e.do(over), over.Job, connector.StatusDropped, "queue_full")
	never() // dropped at once: what it waited may round to nothing
	e.giveUp(given.Job)
	want(t, expect[*connector.Result](e.peer), given.Job, connector.StatusCancelled, "cancelled")
	if never() == 0 { // another's answer was waited for meanwhile
		t.Error("a job that was given up has not waited")
	}
	r.gate.armed.Store(false)
	r.gate.unblock()
	for range 2 {
		want := expect[*connector.Result](e.peer)
		if want.Status != connector.StatusOK {
			t.Errorf("%+v", want)
		}
	}
	if all, waited, moved := <-took, <-wait, <-move; waited <= 0 || waited+moved > all {
		t.Errorf("of %v s a store waited %v s and copied for %v s", all, waited, moved)
	}
	r.settled()
}
