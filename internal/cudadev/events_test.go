package cudadev

import (
	"errors"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// Events that can't be opened cost the engine the store's wait for it, not the
// store. None is kept of those that could be.
func TestEventsThatCantBeOpened(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1)
	e.reg.Events[1] = make([]byte, cuda.HandleBytes)
	e.registered()
	if e.mapping.(worker.EventMapping).HasEvents() || !r.log.has("events can't be opened") || r.double.Get(cudatest.ForeignEvents) != 0 {
		t.Errorf("events are there: %d", r.double.Get(cudatest.ForeignEvents))
	}
	e.roundTrip(0)
	if err := e.copy(t.Context(), worker.Store, 0, e.batch(0)); !errors.Is(err, errNoEvent) {
		t.Errorf("an engine that names an event all the same: %v", err)
	}
	e.close()
	second := r.newEngine(layouts()[0], 2).registered()
	if !second.mapping.(worker.EventMapping).HasEvents() {
		t.Error("events that can be opened are not there")
	}
	second.close()
	r.empty()
}

// One whose opening loses the context ends the registration.
func TestAnEventThatLosesTheContext(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1)
	r.double.Fail("cuIpcOpenEventHandle", int(cuda.LaunchFailed), 1, true)
	if _, err := r.device.Map(1, e.reg, nil); !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	<-r.lost
}
