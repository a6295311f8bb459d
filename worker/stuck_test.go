package worker_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// patience bounds what a correct run never waits for.
const patience = 30 * time.Second

// Ticks make idle pipelines beat; one whose device does not come back keeps the
// round open however often the others go round.
func TestAStuckCopyStopsThePulse(t *testing.T) {
	var rounds atomic.Int64
	r := newRig(t, func(cfg *worker.Config) { cfg.Pulse = pulse.New(func() { rounds.Add(1) }) })
	e := r.engine()
	tickUntil := func(n int64) { t.Helper(); r.tickUntil(&rounds, n) }
	tickUntil(3)
	stored(t, e, 8)
	r.gate.armed.Store(true)
	job := e.loadJob("p", ids(30, 8))
	e.send(job)
	<-r.gate.entered // the copy is under way, and stays so
	before := rounds.Load()
	for range 100 {
		r.server.Tick()
		e.ping() // the daemon looks alive to whoever asks
	}
	// The stuck pipeline beat once before the copy.
	if more := rounds.Load() - before; more > 1 {
		t.Errorf("%d rounds were complete although a copy is stuck", more)
	}
	r.gate.unblock()
	tickUntil(rounds.Load() + 3)
}

// A copy that waits for the engine's event goes round: how long the engine's step
// takes is no business of the service manager's.
func TestACopyThatWaitsForTheEngineBeats(t *testing.T) {
	var rounds atomic.Int64
	group := pulse.New(func() { rounds.Add(1) })
	r := newRig(t, func(cfg *worker.Config) { cfg.Pulse = group })
	e := r.engine()
	stored(t, e, 8)
	accepting := group.Join() // as a daemon's other loops
	for name, job := range map[string]any{"load": e.loadJob("p", ids(30, 8)), "store": e.storeJob("q", ids(40, 8))} {
		r.gate.armed.Store(true)
		e.send(&connector.After{Type: connector.TypeAfter, Event: 0})
		e.send(job)
		<-r.gate.entered // the engine's event has not happened
		r.gate.armed.Store(false)
		r.tickUntil(&rounds, rounds.Load()+4, accepting)
		r.gate.proceed <- struct{}{}
		if result := expect[*connector.Result](e.peer); result.Status != connector.StatusOK {
			t.Errorf("%s: %+v", name, result)
		}
	}
	accepting.Leave()
}

// tickUntil ticks, and others beat, until there were so many rounds.
func (r *rig) tickUntil(rounds *atomic.Int64, n int64, others ...*pulse.Loop) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); rounds.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d rounds, want %d", rounds.Load(), n)
		}
		r.server.Tick()
		for _, loop := range others {
			loop.Beat()
		}
	}
}

// A load that waits for a slower tier goes round: the engine's deadline bounds
// it, not the service manager's.
func TestALoadThatWaitsForATierBeats(t *testing.T) {
	var rounds atomic.Int64
	r := newRig(t, func(cfg *worker.Config) { cfg.Pulse = pulse.New(func() { rounds.Add(1) }) })
	e := r.engine()
	stored(t, e, 4)
	r.store.SetLoading(1 << 30)
	asked := make(chan struct{}, 1)
	r.store.SetHook(func(call string) error {
		if call == "Get" {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		return nil
	})
	job := e.loadJob("p", ids(20, 4))
	e.send(job)
	<-asked
	r.tickUntil(&rounds, rounds.Load()+4)
	e.giveUp(job.Job)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusCancelled, "cancelled", ids(20, 4)...)
}

// An engine that is stopped and does not take its results is no reason to end
// the worker, which others use.
func TestAnEngineThatDoesNotReadDoesNotStopThePulse(t *testing.T) {
	// More results than a connection holds, of as many jobs as the engine may have:
	// the pipelines keep the rest.
	const jobs = 1 << 12
	var rounds atomic.Int64
	r := newRig(t, func(cfg *worker.Config) {
		cfg.Pulse, cfg.QueueJobs = pulse.New(func() { rounds.Add(1) }), jobs
	})
	e := r.register(newRegistrationOf(t, jobs))
	for range jobs {
		e.send(e.loadJob("absent", ids(20, 4)))
	}
	r.tickUntil(&rounds, rounds.Load()+4)
	for range jobs {
		if res := expect[*connector.Result](e.peer); res.Reason != "absent" {
			t.Fatalf("%+v", res)
		}
	}
}

// An engine may have no more jobs than its board has words: one that sends more and
// reads no results would have those held for it without end.
func TestMoreJobsThanTheBoardHasWords(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	held := e.storeJob("p", ids(1, 2))
	e.send(held)
	<-r.gate.entered
	for range 3 * jobSlots { // results that are read count no more
		given := e.loadJob("absent", ids(20, 4))
		if given.Job%jobSlots == held.Job%jobSlots {
			continue // its word is in use
		}
		if res := e.do(given); res.Job != given.Job || res.Reason != "absent" {
			t.Fatalf("%+v", res)
		}
	}
	for range jobSlots {
		e.send(e.storeJob("q", ids(3, 1)))
	}
	var refused *connector.Error
	for refused == nil {
		switch m := e.recv().(type) {
		case *connector.Result: // of a store that made room
		case *connector.Error:
			refused = m
		}
	}
	if refused.Code != connector.CodeMalformed || !strings.Contains(refused.Message, "job_slots is 16") {
		t.Errorf("%+v", refused)
	}
	r.gate.unblock()
	if res := expect[*connector.Result](e.peer); res.Job != held.Job { // what ran is answered all the same
		t.Errorf("%+v", res)
	}
	e.expectEOF()
	other := r.engine()
	job := other.storeJob("r", ids(1, 2))
	want(t, other.do(job), job.Job, connector.StatusOK, "")
	r.settled()
}
