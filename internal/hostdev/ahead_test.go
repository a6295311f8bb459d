package hostdev

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
)

const aheadTestBytes = 5 * aheadStep / 2

// newAheadTest returns a region whose pages the engine has touched, and how many
// of them are in this process's page table.
func newAheadTest(t *testing.T) (r *region, entered func() int) {
	t.Helper()
	fd, err := shm.Create(context.Background(), "kv", aheadTestBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	mapped, err := shm.Map(fd, aheadTestBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mapped.Close() })
	r = &region{mapped: mapped, whole: shm.IsWhole(fd, aheadTestBytes), data: mapped.Data()}
	return r, func() int { return residentPages(t, r.data) }
}

// Every page of a region that is there is entered, to its end.
func TestAheadEntersWhatIsThere(t *testing.T) {
	r, entered := newAheadTest(t)
	if err := r.mapped.Populate(0, 1); errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel has no MADV_POPULATE_WRITE")
	}
	newAhead([]region{*r}).run()
	if got, want := entered(), aheadTestBytes/unix.Getpagesize(); got != want {
		t.Errorf("%d pages are entered, want %d", got, want)
	}
}

// Told to stop, it touches nothing more.
func TestAheadStops(t *testing.T) {
	r, entered := newAheadTest(t)
	a := newAhead([]region{*r})
	close(a.stop)
	a.run()
	if got := entered(); got != 0 {
		t.Errorf("%d pages are entered", got)
	}
}

// While a load goes on it touches nothing, and goes on afterwards.
func TestAheadWaitsForLoads(t *testing.T) {
	r, entered := newAheadTest(t)
	synctest.Test(t, func(t *testing.T) {
		a := newAhead([]region{*r})
		a.loads.Add(1)
		done := make(chan struct{})
		go func() { defer close(done); a.run() }()
		time.Sleep(10 * loadPause) // of the test's clock
		if got := entered(); got != 0 {
			t.Errorf("%d pages are entered beside a load", got)
		}
		a.loads.Add(-1)
		<-done
		if entered() == 0 {
			t.Error("nothing is entered after the load")
		}
	})
}

// It takes no memory: what is not there yet, or is another process' own, is left alone.
func TestAheadTakesNoMemory(t *testing.T) {
	s, err := shm.NewSegment("kv", aheadTestBytes) // its pages come with their use
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	mapped, err := shm.Map(s.FD(), aheadTestBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mapped.Close() })
	sparse := region{mapped: mapped, whole: shm.IsWhole(s.FD(), aheadTestBytes), data: mapped.Data()}
	if newAhead([]region{sparse, {address: 4096}}) != nil {
		t.Error("it would run")
	}
}

// residentPages counts the pages of data that this process's page table has.
func residentPages(t *testing.T, data []byte) (n int) {
	t.Helper()
	const present = 1 << 63
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := unix.Getpagesize()
	entries := make([]byte, len(data)/page*8)
	if _, err := f.ReadAt(entries, int64(addressOf(data))/int64(page)*8); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(entries); at += 8 {
		if binary.NativeEndian.Uint64(entries[at:])&present != 0 {
			n++
		}
	}
	return n
}
