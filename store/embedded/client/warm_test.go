package client

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// fakeMemory is a segment that notes what is made ready.
type fakeMemory struct {
	bytes []byte

	ready uint64 // from the start of the data on
	fail  error
	// next is called when all that is allocated is ready.
	next func()
}

func (m *fakeMemory) Bytes() []byte             { return m.bytes }
func (m *fakeMemory) Words() []atomic.Uint64    { return shm.Words(m.bytes) }
func (m *fakeMemory) FD() int                   { return -1 }
func (m *fakeMemory) Close() error              { return nil }
func (m *fakeMemory) Prepare(_, _ uint64) error { return nil }
func (m *fakeMemory) Populate(at, n uint64) error {
	if m.fail != nil {
		return m.fail
	}
	end, _ := embedded.PreparedBytes(m.bytes)
	if at+n > end {
		m.fail = errors.New("touched before it was allocated")
		return m.fail
	}
	m.ready = at + n
	if m.ready == end && m.next != nil {
		m.next()
	}
	return nil
}

func newFakeMemory(t *testing.T) (*fakeMemory, *embedded.Master, embedded.Layout) {
	t.Helper()
	layout, err := embedded.NewLayout([16]byte{1}, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	m := &fakeMemory{bytes: make([]byte, layout.FileBytes)}
	master, err := embedded.Create(m, layout, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m, master, layout
}

// What the master has allocated is made ready, all of it, and never more.
func TestWarmFollowsTheMaster(t *testing.T) {
	m, master, layout := newFakeMemory(t)
	m.next = func() {
		if _, err := master.PrepareNext(); err != nil {
			t.Error(err)
		}
	}
	m.next()
	warm(m, layout.DataOffset, nil)
	if m.fail != nil || m.ready != layout.FileBytes {
		t.Errorf("%d of %d bytes are ready: %v", m.ready, layout.FileBytes, m.fail)
	}
}

// It ends when it is told to, and where pages can't be had.
func TestWarmEnds(t *testing.T) {
	m, master, layout := newFakeMemory(t)
	stop := make(chan struct{})
	close(stop)
	warm(m, layout.DataOffset, stop) // the master has prepared nothing and never will
	if _, err := master.PrepareNext(); err != nil {
		t.Fatal(err)
	}
	m.fail = errors.New("no memory")
	warm(m, layout.DataOffset, nil)
	if m.ready != 0 {
		t.Errorf("%d bytes are ready", m.ready)
	}
}

// While the master allocates nothing more, which may last, it looks ever more
// rarely.
func TestWarmLooksRarelyWhereNothingComes(t *testing.T) {
	m, master, layout := newFakeMemory(t)
	if _, err := master.PrepareNext(); err != nil {
		t.Fatal(err)
	}
	looks := &countedLooks{fakeMemory: m}
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		go warm(looks, layout.DataOffset, stop)
		time.Sleep(time.Hour) // of the test's clock
		close(stop)
		synctest.Wait()
		if most := int(time.Hour/warmPauseMax) + 20; looks.n > most {
			t.Errorf("it looked %d times in an hour, want at most %d", looks.n, most)
		}
	})
}

type countedLooks struct {
	*fakeMemory
	n int
}

func (m *countedLooks) Bytes() []byte {
	m.n++
	return m.fakeMemory.Bytes()
}
