package cudadev

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// TestFigures: each thing that happens is counted, and nothing else is.
func TestFigures(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Way = ByEngine })
	if s := r.device.Stats(); s != (Stats{StoreBytes: memoryBytes}) {
		t.Errorf("before anything: %+v", s)
	}
	l := layouts()[0]
	bytes := int64(l.blocks-1) * int64(len(l.runs)) * 4096
	e := r.newEngine(l, 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	if err := e.copy(t.Context(), worker.Store, nil, e.batch(0)); err != nil {
		t.Fatal(err)
	}
	e.events[0].Record()
	done := e.begin(t.Context(), worker.Load, 0, e.batch(0))
	r.double.Await(func() bool { return r.device.Stats().Waits == 1 })
	e.events[0].Complete()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := r.device.Stats()
	launches := (bytes + 1<<16 - 1) >> 16
	want := Stats{
		Stores: [Ways]Flow{ByEngine: {Launches: launches, Bytes: bytes, Caches: 1}}, Loads: [Ways]Flow{ByEngine: {Launches: launches, Bytes: bytes, Caches: 1}},
		MappedBytes: int64(l.bytes[0]) + 2048, StoreBytes: memoryBytes, RegisteredBytes: memoryBytes, Waits: 1, Waited: s.Waited,
	}
	if s != want || s.Waited <= 0 {
		t.Errorf("%+v, want %+v", s, want)
	}

	// A load that is given up while the GPU has some of it.
	ctx, cancel := context.WithCancel(t.Context())
	r.double.Shut()
	done = e.begin(ctx, worker.Load, nil, e.batch(0))
	r.double.AwaitShut()
	cancel()
	r.double.Open()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if s := r.device.Stats(); s.Fenced != 1 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	// One that fails, and a registration that does.
	if err := e.copy(t.Context(), worker.Load, 99, e.batch(0)); err == nil {
		t.Error("an event that there is not")
	}
	bad := *e.reg
	bad.DeviceUUID = nil
	if _, err := r.device.Map(1, &bad, nil); err == nil {
		t.Error("mapped")
	}
	if s := r.device.Stats(); s.Failed != 1 || s.Refused != 1 || s.Fenced != 1 || s.Lost {
		t.Errorf("%+v", s)
	}
	r.double.Fail("cuEventSynchronize", int(cuda.LaunchFailed), 0, true)
	if err := e.copy(t.Context(), worker.Load, nil, e.batch(0)); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if s := r.device.Stats(); !s.Lost || s.Failed != 2 {
		t.Errorf("%+v", s)
	}
	e.close()
	if s := r.device.Stats(); s.MappedBytes != 0 || s.Loads[ByEngine].Caches != 0 {
		t.Errorf("without an engine: %+v", s)
	}
}

// TestTheContextIsGivenBackBesideTheEngine: an engine's memory is unmapped when its
// mapping is closed, however long the driver takes for the store's memory; who comes
// next waits for that.
func TestTheContextIsGivenBackBesideTheEngine(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	segment := r.pool.segments[0]
	segment.pinning.Lock() // the driver is slow
	e.close()
	if n, contexts := r.double.Get(cudatest.Mappings), r.double.Get(cudatest.Contexts); n != 0 || contexts != 1 {
		t.Errorf("%d mappings, %d contexts", n, contexts)
	}
	next := make(chan worker.Mapping, 1)
	go func() {
		m, err := r.device.Map(1, e.reg, nil)
		if err != nil {
			t.Error(err)
		}
		next <- m
	}()
	select {
	case <-next:
		t.Error("two contexts at a time would register the same memory twice")
	case <-time.After(20 * time.Millisecond): // time to go wrong in
	}
	segment.pinning.Unlock()
	e.mapping = <-next
	e.roundTrip(0)
	e.close()
	r.empty()
}
