package cudadev

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// loadFenceHolds cancels a load while the GPU is held up, takes the blocks for
// something else as soon as the copy is done, and reports whether they stay so.
func loadFenceHolds(t *testing.T, way Way, broken bool) bool {
	r := newRig(t, func(c *Config) {
		c.Way, c.LaunchBytes, c.broken.finish = way, 8192, broken
		if broken {
			c.LaunchBytes = 1 << 20 // one launch: more would use slots that are in use
		}
	})
	e := r.newEngine(layouts()[0], 1).registered()
	defer e.close()
	r.prepare(memoryBytes, true, memoryBytes)
	batch := e.batch(0)
	for _, c := range batch {
		copy(c.Memory, bytes.Repeat([]byte{0x11}, len(c.Memory)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.double.Shut()
	done := e.begin(ctx, worker.Load, nil, batch)
	r.double.AwaitShut()
	cancel()
	if broken {
		<-done // at once: that is what is broken
	} else {
		select {
		case err := <-done:
			t.Errorf("%v: done (%v) with the GPU held up", way, err)
		default:
		}
		r.double.Open()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v: %v", way, err)
		}
	}
	for _, c := range batch {
		e.write(c.BlockID, 0, bytes.Repeat([]byte{0xee}, len(c.Memory)))
	}
	r.double.Open()
	if broken {
		r.double.Await(func() bool { return r.double.Get(cudatest.Records) == 1 }) // behind the launch
	} else if err := e.copy(t.Context(), worker.Store, nil, e.batch(2<<20)); err != nil {
		t.Error(err) // it is behind all that was enqueued
	}
	for _, c := range batch {
		if !bytes.Equal(e.read(c.BlockID, 0), bytes.Repeat([]byte{0xee}, len(c.Memory))) {
			return false
		}
	}
	return true
}

func TestACancelledLoadWritesNothingAfterItsEnd(t *testing.T) {
	for _, way := range []Way{ByKernel, ByEngine} {
		if !loadFenceHolds(t, way, false) {
			t.Errorf("%v: blocks were written after the load's end", way)
		}
		// The test can fail: a load that does not wait writes into others' blocks.
		if loadFenceHolds(t, way, true) {
			t.Errorf("%v: the broken device was not caught", way)
		}
	}
}

// A cancelled batch enqueues no more than is under way.
func TestACancelEndsTheLaunches(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LaunchBytes = 4096 })
	e := r.newEngine(layouts()[0], 1).registered()
	defer e.close()
	r.prepare(memoryBytes, true, memoryBytes)
	var asked atomic.Int32
	ctx := countingContext{t.Context(), &asked, 4}
	if err := e.copy(ctx, worker.Load, nil, e.batch(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := r.double.Get(cudatest.Launches); n != 3 {
		t.Errorf("%d launches, want 3", n)
	}
}

// countingContext is cancelled when its error has been asked for so many times.
type countingContext struct {
	context.Context
	asked *atomic.Int32
	last  int32
}

func (c countingContext) Err() error {
	if c.asked.Add(1) >= c.last {
		return context.Canceled
	}
	return nil
}

// TestTheEngineWritesFirst: a store reads nothing before the engine's event, and
// would without the wait.
func TestTheEngineWritesFirst(t *testing.T) {
	for _, broken := range []bool{false, true} {
		r := newRig(t, func(c *Config) { c.broken.await = broken })
		if broken {
			r.double.Tolerate()
		}
		e := r.newEngine(layouts()[0], 1).registered()
		r.prepare(memoryBytes, true, memoryBytes)
		batch := e.batch(0)
		e.events[1].Record()
		r.double.Dirty(0, 1<<30)
		done := e.begin(t.Context(), worker.Store, 1, batch)
		if !broken {
			r.double.Await(func() bool { return r.device.Stats().Waits == 1 })
			select {
			case err := <-done:
				t.Errorf("done (%v) before the engine is", err)
			default:
			}
		} else if err := <-done; err != nil {
			t.Error(err)
		}
		for i := range batch { // the engine's kernel ends
			e.write(batch[i].BlockID, 0, bytes.Repeat([]byte{0x77}, len(batch[i].Memory)))
		}
		r.double.Dirty(0, 0)
		e.events[1].Complete()
		if !broken {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		seen, first := r.double.Violations()
		if early := seen > 0; early != broken {
			t.Errorf("broken %v: read early %v %s", broken, early, first)
		}
		stale := false
		for _, c := range batch {
			stale = stale || !bytes.Equal(c.Memory, bytes.Repeat([]byte{0x77}, len(c.Memory)))
		}
		if stale != broken {
			t.Errorf("broken %v: stale bytes %v", broken, stale)
		}
		e.close()
	}
}

// What waits for the engine is ended by a cancel, and by the session's end: an
// engine that was killed completes no event.
func TestAWaitForTheEngineCanBeGivenUp(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	e.events[0].Record()
	ctx, cancel := context.WithCancel(t.Context())
	stores, loads := e.begin(ctx, worker.Store, 0, e.batch(0)), e.begin(ctx, worker.Load, 0, e.batch(1<<20))
	r.double.Await(func() bool { return r.device.Stats().Waits == 2 })
	cancel()
	for _, done := range []<-chan error{stores, loads} {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	if n := r.double.Get(cudatest.Launches) + r.double.Get(cudatest.Copies); n != 0 {
		t.Errorf("%d launches and copies", n)
	}
	for _, wrong := range []worker.Event{-1, 2, "1"} {
		if err := e.copy(t.Context(), worker.Store, wrong, e.batch(0)); !errors.Is(err, errNoEvent) {
			t.Errorf("event %v: %v", wrong, err)
		}
	}
	e.close()
	r.empty()
	if err := e.copy(t.Context(), worker.Load, nil, nil); !errors.Is(err, copying.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Close waits for what is under way.
func TestCloseWaits(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	r.double.Shut()
	stores, loads := e.begin(t.Context(), worker.Store, nil, e.batch(0)), e.begin(t.Context(), worker.Load, nil, e.batch(1<<20))
	r.double.AwaitShut()
	closed := make(chan error, 1)
	go func() { closed <- e.mapping.Close() }()
	select {
	case <-closed:
		t.Error("closed with copies under way")
	case <-stores:
		t.Error("a store is done with the GPU held up")
	default:
	}
	if n := r.double.Get(cudatest.Mappings); n != 1 {
		t.Errorf("%d mappings", n)
	}
	r.double.Open()
	if err := errors.Join(<-closed, <-stores, <-loads, e.mapping.Close()); err != nil {
		t.Error(err)
	}
	r.empty()
}
