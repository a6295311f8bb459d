package copying

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustNotRefuse(t *testing.T) func() {
	return func() { t.Error("an open queue refuses a batch") }
}

// newHeldQueue returns a queue whose thread for stores waits for begin.
func newHeldQueue() (q *Queue, begin chan struct{}) {
	q, begin = new(Queue), make(chan struct{})
	q.Start(func(work func()) {
		<-begin
		work()
	})
	return q, begin
}

// TestStoresHaveOneThread: in order, one at a time, while loads wait for nobody; and
// Close waits for all.
func TestStoresHaveOneThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, begin := newHeldQueue()
		var done []int
		for i := range queued {
			q.Store(func() { done = append(done, i) }, mustNotRefuse(t))
		}
		loaded := false
		q.Load(func() { loaded = true }, mustNotRefuse(t))
		synctest.Wait()
		if len(done) != 0 || !loaded {
			t.Errorf("stores %v are done before their thread has begun; the load: %v", done, loaded)
		}
		close(begin)
		q.Close()
		if len(done) != queued || !slices.IsSorted(done) {
			t.Errorf("done are %v", done)
		}
	})
}

// TestStoresBeyondTheQueue: whoever has many batches at once waits no longer for that.
func TestStoresBeyondTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, begin := newHeldQueue()
		var mu sync.Mutex
		done := 0
		count := func() {
			mu.Lock()
			defer mu.Unlock()
			done++
		}
		for range queued + 2 {
			q.Store(count, mustNotRefuse(t))
		}
		synctest.Wait()
		if done != 2 {
			t.Errorf("%d batches are done, want the 2 that had no place", done)
		}
		close(begin)
		q.Close()
		if done != queued+2 {
			t.Errorf("%d batches are done, want %d", done, queued+2)
		}
	})
}

// TestClosedQueueRefuses: at once, and a queue is closed as often as anybody likes.
func TestClosedQueueRefuses(t *testing.T) {
	for _, start := range []bool{false, true} {
		var q Queue
		if start {
			q.Start(func(work func()) { work() })
		}
		q.Close()
		q.Close()
		refused := 0
		for _, enqueue := range []func(batch, refused func()){q.Store, q.Load} {
			enqueue(func() { t.Error("a batch is done in a closed queue") }, func() { refused++ })
		}
		if refused != 2 {
			t.Errorf("%d batches of 2 are refused", refused)
		}
	}
}

// TestFaultIsAnError: of memory that is mapped and not there; and no other panic is.
func TestFaultIsAnError(t *testing.T) {
	fd, err := unix.MemfdCreate("empty", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	memory, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	for name, work := range map[string]func(){"read": func() { copy(make([]byte, 64), memory) }, "write": func() { memory[64] = 1 }} {
		if err := Guarded(work); !errors.Is(err, ErrFault) {
			t.Errorf("%s: %v, want ErrFault", name, err)
		}
	}
	if err := Guarded(func() {}); err != nil {
		t.Error(err)
	}
	defer func() {
		if recover() != "ours" {
			t.Error("a panic that is no fault does not come through")
		}
	}()
	_ = Guarded(func() { panic("ours") })
}
