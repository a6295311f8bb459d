package worker_test

import (
	"sync/atomic"
	"testing"
	"time"

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
	tickUntil := func(n int64) {
		t.Helper()
		for deadline := time.Now().Add(patience); rounds.Load() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d rounds, want %d", rounds.Load(), n)
			}
			r.server.Tick()
		}
	}
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
