package cudadev

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
)

// TestRoundTrips stores and loads every layout, each way, with the store's memory
// registered, in part, and not at all.
func TestRoundTrips(t *testing.T) {
	for _, way := range []Way{ByKernel, ByEngine, Measured} {
		for _, defines := range [][]string{nil, {"WITHOUT_BATCH"}} {
			t.Run(fmt.Sprint(way, defines), func(t *testing.T) {
				r := newRig(t, func(c *Config) { c.Way = way }, defines...)
				for i, l := range layouts() {
					e := r.newEngine(l, uint64(i)).registered()
					e.roundTrip(0)
					if i == 0 && r.device.Stats().BufferedBytes == 0 {
						t.Error("nothing was buffered with nothing registered")
					}
					r.prepare(1<<20+4096, false, 1<<20)
					e.roundTrip(0)
					e.roundTrip(1<<20 - 100_001) // across the border
					r.prepare(memoryBytes, true, memoryBytes)
					before := r.device.Stats().BufferedBytes
					e.roundTrip(1<<20 - 100_001) // across two steps
					if after := r.device.Stats().BufferedBytes; after != before {
						t.Errorf("%s: %d bytes were buffered with everything registered", l.name, after-before)
					}
					e.close()
					r.device.Close()
					if n := r.device.Stats().RegisteredBytes; n != 0 {
						t.Errorf("%d bytes are registered without an engine", n)
					}
					r.prepared.bytes, r.prepared.all = 0, false
				}
				s := r.device.Stats()
				for direction, flows := range map[string]*[Ways]Flow{"stores": &s.Stores, "loads": &s.Loads} {
					for i, flow := range flows {
						if used := flow.Bytes > 0 && flow.Launches > 0; way != Measured && used != (Way(i) == way) {
							t.Errorf("%v: %s by %v: %+v", way, direction, Way(i), flow)
						}
						if flow.Caches != 0 {
							t.Errorf("%s by %v: %d caches without an engine", direction, Way(i), flow.Caches)
						}
					}
				}
				if batched := r.double.Get(cudatest.Batches) > 0; batched != (defines == nil) {
					t.Errorf("batched: %v", batched)
				}
				r.empty()
			})
		}
	}
}

// One launch copies what fits: a job of many small pieces is no more launches.
func TestALaunchIsManyPieces(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LaunchBytes = 1 << 20 })
	e := r.newEngine(layouts()[3], 1).registered()
	r.prepare(memoryBytes, true, memoryBytes)
	before := r.double.Get(cudatest.Launches)
	e.roundTrip(0) // 160 pieces each way
	if n := r.double.Get(cudatest.Launches) - before; n != 2 {
		t.Errorf("%d launches, want one each way", n)
	}
	// However much there is to copy, the engine keeps its processors.
	if n := r.double.Get(cudatest.LargestLaunch); n > 4*512 {
		t.Errorf("a launch of %d threads", n)
	}
	e.close()
}

func TestNoDriver(t *testing.T) {
	device := New(Config{Library: "libnone.so"}, NewPool())
	if _, err := device.Probe(); !errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("%v", err)
	}
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		kernel, engine int
		want           Way
	}{{100, 100, ByEngine}, {100, 109, ByEngine}, {100, 111, ByKernel}, {300, 100, ByEngine}} {
		if got := decide(time.Duration(c.kernel), time.Duration(c.engine)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A measurement that can't be made costs nothing but itself.
func TestNoRoomToMeasure(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Way = Measured })
	r.double.Fail("cuMemAlloc_v2", int(cuda.OutOfMemory), 2, true) // the two slots have their lists
	e := r.newEngine(layouts()[0], 1).registered()
	if !r.log.has("could not be measured") {
		t.Error("nothing was said")
	}
	r.double.Heal()
	e.roundTrip(0)
	e.close()
	r.empty()
}

// Pieces that are measured lie as well as the kernel likes, and are there at all.
func TestMeasuredPieces(t *testing.T) {
	for _, c := range []struct{ a, b, want uint64 }{{4096, 4096, 4096}, {321, 70001, 35152}, {656, 660, 656}, {1, 20, 1}} {
		m := &mapping{shards: [][]segment{{{bytes: c.a}, {bytes: c.b}}}}
		if got := m.pieceBytes(); got != c.want {
			t.Errorf("%d and %d: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
