package cudadev

import (
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// stillUntold ends the test for batches that are told to be over.
func stillUntold(t *testing.T, batches ...<-chan error) {
	t.Helper()
	time.Sleep(3 * uncertain) // time to go wrong in
	for i, done := range batches {
		select {
		case err := <-done:
			t.Fatalf("batch %d is told (%v) with the GPU held up", i, err)
		default:
		}
	}
}

// A launch whose event could not be recorded is waited for all the same.
func TestRecordFailsOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LaunchBytes = 1 << 20 })
	e := r.newEngine(layouts()[0], 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	r.double.Shut()
	r.double.Fail("cuEventRecord", 999, 0, false)
	done := e.begin(t.Context(), worker.Load, nil, e.batch(0))
	<-r.lost
	stillUntold(t, done)
	r.double.Open()
	if err := <-done; !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	e.close()
}

// A batch's doubt is no news of another's.
func TestOthersDoubt(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LaunchBytes = 1 << 20 })
	e := r.newEngine(layouts()[0], 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	r.double.Shut()
	first := e.begin(t.Context(), worker.Load, nil, e.batch(0))
	r.double.AwaitShut()
	r.double.Await(func() bool { return r.device.Stats().Loads[ByKernel].Launches > 0 }) // its event is recorded
	r.double.Fail("cuEventRecord", 999, 0, false)
	second := e.begin(t.Context(), worker.Load, nil, e.batch(1<<20))
	<-r.lost
	stillUntold(t, first, second)
	r.double.Open()
	for _, done := range []<-chan error{first, second} {
		if err := <-done; !errors.Is(err, ErrLost) {
			t.Errorf("%v", err)
		}
	}
	e.close()
}

// As long as nobody can tell whether the GPU still copies, nobody is told that the
// batch is over.
func TestWhenTheGPUDoesNotSay(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	r.double.Fail("cuEventSynchronize", 999, 0, true)
	done := e.begin(t.Context(), worker.Load, nil, e.batch(0))
	if err := <-r.lost; !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	stillUntold(t, done)
	r.double.Heal()
	if err := <-done; !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	e.close()
}

// A doubt ends when the driver says that the context is lost, to whomever it does:
// all that the GPU did is ended then.
func TestADoubtEndsWithTheContext(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	r.double.Fail("cuEventSynchronize", 999, 0, true)
	done := e.begin(t.Context(), worker.Load, nil, e.batch(0))
	if err := <-r.lost; cuda.Lost(err) {
		t.Errorf("%v is no doubt", err)
	}
	r.double.Fail("cuEventSynchronize", int(cuda.LaunchFailed), 0, true)
	r.double.Await(func() bool { return len(done) > 0 })
	if err := <-done; !cuda.LaunchFailed.In(err) {
		t.Errorf("%v", err)
	}
	if len(r.lost) != 0 {
		t.Error("told twice")
	}
	e.close()
}
