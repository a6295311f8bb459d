package hostdev

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
)

// newAheadTest returns a KV cache of one group with two layers of 64 blocks, a
// page each, none of them there.
func newAheadTest(t *testing.T) (m *mapping, present func() int64) {
	t.Helper()
	const page, blocks = 4096, 64
	s, err := shm.NewSegment("kv", 2*blocks*page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	mapped, err := shm.Map(s.FD(), 2*blocks*page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mapped.Close() })
	if err := mapped.Populate(0, page); errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel has no MADV_POPULATE_WRITE")
	}
	m = &mapping{regions: []region{{mapped: mapped, data: mapped.Data()}}}
	m.groups = [][]segment{{
		{region: &m.regions[0], stride: page, bytes: page},
		{region: &m.regions[0], offset: blocks * page, stride: page, bytes: page},
	}}
	return m, func() int64 {
		var stat unix.Stat_t
		if err := unix.Fstat(s.FD(), &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512 / page
	}
}

func plenty() uint64 { return aheadRoom }

// Where memory is short nothing is touched: a daemon in a small control group
// would be killed for memory that the engine does not want yet. It goes on when
// there is room.
func TestAheadLeavesRoom(t *testing.T) {
	m, present := newAheadTest(t)
	left := uint64(aheadRoom - 1)
	a := newAhead(m, 64, func() uint64 { return left })
	before := present()
	a.used(0, 9)
	if !a.catchUp() || present() != before {
		t.Errorf("%d pages are there, %d before", present(), before)
	}
	left = aheadRoom
	a.used(0, 10)
	if want := int64(2 * (11 + 32)); !a.catchUp() || present() != want {
		t.Errorf("%d pages are there with room, want %d", present(), want)
	}
}

// Half of the cache is ready ahead of the blocks in use, in every layer, and
// not more: the rest of the memory stays free until it is wanted.
func TestAheadStaysAheadOfTheBlocksInUse(t *testing.T) {
	m, present := newAheadTest(t)
	a := newAhead(m, 64, plenty)
	for _, step := range []struct {
		used uint32
		want int64
	}{{0, 2 * (1 + 32)}, {9, 2 * (10 + 32)}, {3, 2 * (10 + 32)}, {40, 2 * 64}, {63, 2 * 64}} {
		a.used(0, step.used)
		if !a.catchUp() {
			t.Fatal("it gave up")
		}
		if got := present(); got != step.want {
			t.Errorf("block %d in use: %d pages are there, want %d", step.used, got, step.want)
		}
	}
}

// Told to stop, it touches nothing more.
func TestAheadStops(t *testing.T) {
	m, present := newAheadTest(t)
	a := newAhead(m, 64, plenty)
	close(a.stop)
	before := present()
	a.run()
	if got := present(); got != before {
		t.Errorf("%d pages are there, %d before", got, before)
	}
}

// While a load goes on it touches nothing, and goes on afterwards.
func TestAheadWaitsForLoads(t *testing.T) {
	m, present := newAheadTest(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(m, 64, plenty)
		before := present()
		a.loads.Add(1)
		go a.run()
		time.Sleep(10 * loadPause) // of the test's clock
		if got := present(); got != before {
			t.Errorf("%d pages are there beside a load, %d before", got, before)
		}
		a.loads.Add(-1)
		time.Sleep(2 * loadPause)
		if got := present(); got != 2*32 {
			t.Errorf("%d pages are there after the load, want %d", got, 2*32)
		}
		close(a.stop)
	})
}

// There is nothing to make ready in another process' private memory.
func TestAheadNeedsAMapping(t *testing.T) {
	if newAhead(&mapping{regions: []region{{address: 4096}}, groups: [][]segment{nil}}, 8, plenty) != nil {
		t.Error("it would run")
	}
}
