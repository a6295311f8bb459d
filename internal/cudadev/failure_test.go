package cudadev

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// TestOneMappingOfAnAllocation: the regions and sessions of an engine share what has
// a handle, and the last to go unmaps it. Chunks are mapped for each.
func TestOneMappingOfAnAllocation(t *testing.T) {
	for _, c := range []struct{ layout, first, both, second int }{{0, 1, 1, 1}, {6, 3, 3 + 2*3, 2 * 3}, {7, 4, 4 + 6, 6}, {8, 3, 3 + 2*3, 2 * 3}} {
		l := layouts()[c.layout]
		r := newRig(t, nil)
		e := r.newEngine(l, 1)
		twice := *e.reg // a second region in the same allocation
		twice.Regions = append(append([]connector.KVRegion(nil), e.reg.Regions...), e.reg.Regions[0])
		mapped := func(want int) {
			t.Helper()
			if n := r.double.Get(cudatest.Mappings) + r.double.Get(cudatest.Chunks); n != uint64(want) {
				t.Errorf("%s: %d mappings, want %d", l.name, n, want)
			}
		}
		e.registered()
		mapped(c.first)
		second, err := r.device.Map(1, &twice, e.descriptors())
		if err != nil {
			t.Fatal(err)
		}
		mapped(c.both)
		e.roundTrip(0)
		e.close()
		mapped(c.second)
		e.mapping = second
		e.roundTrip(0)
		e.close()
		r.empty()
		// The engine registers again, after it slept for example.
		e.registered().roundTrip(0)
		e.close()
		r.empty()
	}
}

// TestRefusals: what is wrong with a registration is said, and leaves nothing.
func TestRefusals(t *testing.T) {
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		spoil  func(e *engine)
		layout int // 0: 2
		want   error
	}{
		"no GPU named":         {spoil: func(e *engine) { e.reg.DeviceUUID = nil }, want: ErrRegion},
		"not our GPU":          {spoil: func(e *engine) { e.reg.DeviceUUID = uuid(9) }, want: cuda.ErrNoDevice},
		"no handle":            {spoil: func(e *engine) { e.reg.Regions[0].Handle = nil }, want: ErrRegion},
		"a dead handle":        {spoil: func(e *engine) { e.reg.Regions[0].Handle = make([]byte, 64) }, want: ErrRegion},
		"beyond the end":       {spoil: func(e *engine) { e.reg.Regions[0].Address++ }, want: ErrRegion},
		"far beyond the end":   {spoil: func(e *engine) { e.reg.Regions[0].Address = 1<<64 - 1 }, want: ErrRegion},
		"longer than all":      {spoil: func(e *engine) { e.reg.Regions[0].Bytes = 1 << 63 }, want: ErrRegion},
		"an unknown kind":      {spoil: func(e *engine) { e.reg.Regions[0].Kind = "memfd" }, want: ErrRegion},
		"overlapping blocks":   {spoil: func(e *engine) { e.reg.Segments[0].BlockStride = 100 }, want: ErrRegion},
		"chunks not sent":      {spoil: func(e *engine) { e.fds = e.fds[:2] }, layout: 6, want: ErrRegion},
		"no chunks":            {spoil: func(e *engine) { e.reg.Regions[0].Chunks = nil }, layout: 6, want: ErrRegion},
		"a descriptor of -1":   {spoil: func(e *engine) { e.reg.Regions[0].FD = -1 }, layout: 6, want: ErrRegion},
		"a chunk of nothing":   {spoil: func(e *engine) { e.reg.Regions[0].Chunks = []uint64{0, 1 << 14, 1 << 17} }, layout: 6, want: ErrRegion},
		"chunks without end":   {spoil: func(e *engine) { e.reg.Regions[0].Chunks = []uint64{1 << 63, 1 << 63, 1 << 17} }, layout: 6, want: ErrRegion},
		"a chunk too long":     {spoil: func(e *engine) { e.reg.Regions[0].Chunks = []uint64{1 << 17, 1 << 14, 1 << 17} }, layout: 6, want: ErrRegion},
		"a fabric handle cut":  {spoil: func(e *engine) { e.reg.Regions[0].Handle = e.reg.Regions[0].Handle[:128] }, layout: 8, want: ErrRegion},
		"no fabric handles":    {spoil: func(e *engine) { e.reg.Regions[0].Chunks, e.reg.Regions[0].Handle = nil, nil }, layout: 8, want: ErrRegion},
		"a dead fabric handle": {spoil: func(e *engine) { clear(e.reg.Regions[0].Handle[64:]) }, layout: 8, want: ErrRegion},
		"the kernel is no go":  {spoil: func(e *engine) { r.double.Fail("cuModuleLoadDataEx", 218, 0, false) }, want: &cuda.Error{}},
		"no memory":            {spoil: func(e *engine) { r.double.Fail("cuIpcOpenMemHandle_v2", int(cuda.OutOfMemory), 0, false) }, want: &cuda.Error{Code: cuda.OutOfMemory}},
		"no range":             {spoil: func(e *engine) { r.double.Fail("cuMemGetAddressRange_v2", int(cuda.InvalidValue), 0, false) }, want: &cuda.Error{Code: cuda.InvalidValue}},
	} {
		e := r.newEngine(layouts()[max(c.layout, 2)], 1)
		e.reg.Segments = append([]connector.KVSegment(nil), e.reg.Segments...)
		c.spoil(e)
		m, err := r.device.Map(1, e.reg, e.descriptors())
		if m != nil || err == nil {
			t.Errorf("%s: mapped", name)
			_ = m.Close()
			continue
		}
		var got, want *cuda.Error
		if errors.As(c.want, &want) { // of any code, or of that
			if !errors.As(err, &got) || want.Code != 0 && want.Code != got.Code {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		r.device.Close()
		if n := r.double.Get(cudatest.Contexts); n != 0 {
			t.Errorf("%s: %d contexts are left", name, n)
		}
	}
	r.empty()
}

func TestAnOldDriverHasNoChunks(t *testing.T) {
	r := newRig(t, nil, "WITHOUT_CHUNKS")
	e := r.newEngine(layouts()[6], 1)
	if _, err := r.device.Map(1, e.reg, e.descriptors()); !errors.Is(err, cuda.ErrNoChunks) {
		t.Errorf("%v", err)
	}
	r.empty()
}

func TestOneGPUForAWorker(t *testing.T) {
	r := newRig(t, nil)
	r.double.Set(cudatest.Devices, 1)
	devices, err := r.device.Probe()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%+v, %v", devices, err)
	}
	first := r.newEngine(layouts()[0], 1).registered()
	second := r.newEngine(layouts()[1], 2)
	second.reg.DeviceUUID = uuid(1)
	if _, err := r.device.Map(1, second.reg, nil); !errors.Is(err, ErrOtherGPU) {
		t.Errorf("%v", err)
	}
	first.close()
	second.registered().roundTrip(0) // once the other GPU's engines are gone
	second.close()
	r.empty()
}

// TestALostContext: the batch fails, nothing is asked of the driver after it, and
// whoever has to start another process is told, once.
func TestALostContext(t *testing.T) {
	for _, call := range []string{"cuLaunchKernel", "cuEventRecord", "cuEventQuery", "cuMemHostRegister_v2", "cuStreamCreateWithPriority"} {
		r := newRig(t, nil)
		e := r.newEngine(layouts()[0], 1).registered()
		pinning := call == "cuMemHostRegister_v2"
		if !pinning {
			r.prepare(memoryBytes, true, memoryBytes)
		}
		r.double.Fail(call, int(cuda.LaunchFailed), 0, true)
		if pinning {
			r.prepare(memoryBytes, true, 0)
		}
		if call == "cuMemHostRegister_v2" {
			if err := <-r.lost; !cuda.LaunchFailed.In(err) {
				t.Errorf("%s: %v", call, err)
			}
		}
		if err := e.copy(t.Context(), worker.Load, 0, e.batch(0)); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", call, err)
		}
		if call != "cuMemHostRegister_v2" {
			if err := <-r.lost; !cuda.LaunchFailed.In(err) {
				t.Errorf("%s: %v", call, err)
			}
		}
		r.double.Set(cudatest.Lost, uint64(cuda.LaunchFailed))
		if err := e.copy(t.Context(), worker.Store, nil, e.batch(0)); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", call, err)
		}
		if _, err := r.device.Map(1, e.reg, nil); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", call, err)
		}
		if n := r.double.Get(cudatest.AfterLoss); n != 0 {
			t.Errorf("%s: %d calls after the loss", call, n)
		}
		e.close()
		if len(r.lost) != 0 {
			t.Errorf("%s: told twice", call)
		}
	}
}

// A call that fails without the context's end fails its batch, and the next is as
// ever.
func TestAFailedCallIsItsBatchs(t *testing.T) {
	for _, way := range []Way{ByKernel, ByEngine} {
		r := newRig(t, func(c *Config) { c.Way = way })
		e := r.newEngine(layouts()[0], 1).registered()
		for _, call := range []string{"cuLaunchKernel", "cuMemcpyBatchAsync", "cuMemHostAlloc", "cuMemAlloc_v2", "cuEventCreate", "cuStreamCreateWithPriority"} {
			r.double.Fail(call, int(cuda.OutOfMemory), 0, false)
			if err := e.copy(t.Context(), worker.Load, nil, e.batch(0)); err != nil && !cuda.OutOfMemory.In(err) {
				t.Errorf("%s: %v", call, err)
			}
			r.double.Heal()
		}
		e.roundTrip(0)
		e.close()
		r.empty()
	}
}

// TestMemoryThatCantBeRegistered is said, counted, and copied all the same.
func TestMemoryThatCantBeRegistered(t *testing.T) {
	r := newRig(t, nil)
	r.double.Fail("cuMemHostRegister_v2", int(cuda.OutOfMemory), 1, true) // the second step
	e := r.newEngine(layouts()[0], 1).registered()
	r.prepare(memoryBytes, true, 1<<20)
	r.double.Await(func() bool { return r.device.Stats().UnregisteredBytes == memoryBytes-1<<20 })
	r.double.Await(func() bool { return r.log.has("go by way of a buffer") })
	e.roundTrip(1<<20 - 100_001)
	if r.device.Stats().BufferedBytes == 0 {
		t.Error("nothing was buffered")
	}
	e.close()
	r.device.Close()
	if n := r.device.Stats().UnregisteredBytes; n != 0 {
		t.Errorf("%d bytes could not be registered with no engine there", n)
	}
	e.registered() // the next context tries it anew
	r.double.Await(func() bool { return r.device.Stats().UnregisteredBytes > 0 })
	if n := r.device.Stats().UnregisteredBytes; n != memoryBytes {
		t.Errorf("%d bytes could not be registered, want %d", n, memoryBytes)
	}
	e.close()
	r.empty()
}

// A segment that comes later, and one that goes.
func TestSegmentsComeAndGo(t *testing.T) {
	r := newRig(t, nil)
	e := r.newEngine(layouts()[0], 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	r.pool.Remove(r.memory)
	if n := r.device.Stats().RegisteredBytes; n != 0 {
		t.Errorf("%d bytes are registered", n)
	}
	e.roundTrip(0)
	r.pool.Remove(r.memory) // again: nothing
	r.pool.Add(r.memory, func() (uint64, bool) { return memoryBytes, true })
	r.double.Await(func() bool { return r.device.Stats().RegisteredBytes == memoryBytes })
	e.roundTrip(0)
	e.close()
	r.empty()
}

// TestManyAtOnce: engines come, copy at the same time, and go.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LaunchBytes = 1 << 14 })
	r.prepared.bytes, r.prepared.all = memoryBytes, true
	var running sync.WaitGroup
	for i := range 6 {
		l := layouts()[0]
		e := r.newEngine(l, uint64(i))
		at := i * memoryBytes / 6
		running.Go(func() {
			for k := range 5 {
				m, err := r.device.Map(1, e.reg, nil)
				if err != nil {
					t.Error(err)
					return
				}
				e := *e
				e.mapping = m
				way := rand.IntN(2) == 0
				var inner sync.WaitGroup
				if way { // loads and stores beside each other, of other memory
					inner.Go(func() { e.concurrent(at + 300_000) })
				}
				e.storeOnly(at)
				inner.Wait()
				e.close()
				_ = k
			}
		})
	}
	running.Wait()
	r.empty()
}

// storeOnly stores all blocks and compares.
func (e *engine) storeOnly(from int) {
	batch := e.batch(from)
	if err := e.copy(e.t.Context(), worker.Store, nil, batch); err != nil {
		e.t.Error(err)
	}
	for _, c := range batch {
		if !bytes.Equal(c.Memory, e.read(c.BlockID, c.Shard)) {
			e.t.Errorf("block %d differs", c.BlockID)
		}
	}
}

// concurrent stores elsewhere at the same time.
func (e *engine) concurrent(from int) { e.storeOnly(from) }
