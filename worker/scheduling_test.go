package worker_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// running waits until so many jobs are begun.
func (r *rig) running(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); r.server.Stats().Queues.Running != n; runtime.Gosched() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d jobs run, want %d", r.server.Stats().Queues.Running, n)
		}
	}
}

// While a load moves, of whatever engine, no store asks for room or copies.
func TestAStoreWaitsForAnothersLoad(t *testing.T) {
	r := newRig(t, nil)
	loads, stores := r.engine(), r.engine()
	stored(t, loads, 2)
	var held, early atomic.Bool
	r.store.SetHook(func(call string) error {
		if call == "PutStart" && held.Load() {
			early.Store(true)
		}
		return nil
	})
	held.Store(true)
	r.gate.armed.Store(true)
	load := loads.loadJob("p", ids(20, 2))
	loads.send(load)
	<-r.gate.entered
	store := stores.storeJob("q", ids(1, 2))
	stores.send(store)
	r.running(2)
	for range 20 {
		stores.ping() // nothing is answered, and the store has every chance to go on
	}
	copies := r.gate.copies.Load()
	r.gate.armed.Store(false)
	held.Store(false)
	r.gate.unblock()
	want(t, expect[*connector.Result](loads.peer), load.Job, connector.StatusOK, "")
	want(t, expect[*connector.Result](stores.peer), store.Job, connector.StatusOK, "")
	if early.Load() || copies != 2 { // one is the store's of before
		t.Errorf("beside a load a store asked for room (%v), or %d copies were begun, want the load's", early.Load(), copies-1)
	}
	r.settled()
}

// pieces is a device whose loads copy a block at a time, each when the test takes its size.
type pieces struct {
	worker.Device
	begun atomic.Int64
	sizes chan int // in blocks
}

func (d *pieces) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := d.Device.Map(pid, reg, fds)
	return &piecesMapping{m, d}, err
}

type piecesMapping struct {
	worker.Mapping
	d *pieces
}

func (m *piecesMapping) PieceBytes() (load, store int) { return blockBytes, blockBytes }

func (m *piecesMapping) Copy(ctx context.Context, d worker.Direction, after worker.Event, batch []worker.ShardCopy, done func(error)) {
	go func() {
		if d == worker.Load {
			m.d.begun.Add(1)
			m.d.sizes <- len(batch)
		}
		m.Mapping.Copy(ctx, d, after, batch, done)
	}()
}

// The pieces of a load are large until another is beside it.
func TestALoadThatIsAloneHasLargePieces(t *testing.T) {
	d := &pieces{Device: hostdev.Device{}, sizes: make(chan int)}
	r := newRig(t, func(cfg *worker.Config) {
		cfg.Devices = map[string]worker.Device{"host": d}
		cfg.BatchShards = 16
	})
	e := r.engine()
	stored(t, e, 6)
	first, second := e.loadJob("p", ids(10, 6)), e.loadJob("p", ids(20, 6))
	e.send(first)
	r.running(1)
	for d.begun.Load() == 0 {
		runtime.Gosched()
	}
	e.send(second)
	r.running(2)
	var sizes []int
	for range 3 { // two of the first's are left, so that it is beside the second
		select {
		case size := <-d.sizes:
			sizes = append(sizes, size)
		case <-time.After(time.Minute):
			t.Fatalf("after pieces of %d blocks there is no more", sizes)
		}
	}
	if want := []int{4, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("copies of %d blocks, want %d", sizes, want)
	}
	go func() {
		for range d.sizes { //nolint:revive // lets the others copy
		}
	}()
	defer close(d.sizes)
	for range 2 {
		if got := expect[*connector.Result](e.peer); got.Status != connector.StatusOK {
			t.Errorf("%+v", got)
		}
	}
	r.settled()
}

// A load that waits for a slower tier holds up no store.
func TestALoadThatWaitsForATierHoldsUpNoStore(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	r.store.SetLoading(1 << 30)
	load := e.loadJob("p", ids(20, 4))
	e.send(load)
	store := e.storeJob("q", ids(1, 2))
	e.send(store)
	want(t, expect[*connector.Result](e.peer), store.Job, connector.StatusOK, "")
	e.giveUp(load.Job)
	want(t, expect[*connector.Result](e.peer), load.Job, connector.StatusCancelled, "cancelled", ids(20, 4)...)
	r.settled()
}

// A store that is cancelled while it waits for its turn copies nothing.
func TestAStoreIsCancelledWhileItWaitsForItsTurn(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 2)
	r.gate.armed.Store(true)
	load, store := e.loadJob("p", ids(20, 2)), e.storeJob("q", ids(1, 2))
	e.send(load)
	<-r.gate.entered
	e.send(store)
	r.running(2)
	e.giveUp(store.Job)
	want(t, expect[*connector.Result](e.peer), store.Job, connector.StatusCancelled, "cancelled")
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), load.Job, connector.StatusOK, "")
	if n := r.store.Published(); n != 2 {
		t.Errorf("%d puts published, want those of before", n)
	}
	r.settled()
}

// What is left of a preempted request is not copied any more: its blocks are
// wanted. What others have in the same job is.
func TestAPreemptedRequestIsNotCopiedAnyMore(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	job := e.batch(e.part("p", ids(1, 5)), e.part("q", ids(10, 3)))
	e.send(job)
	<-r.gate.entered // with two blocks of the first part
	e.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-p"}})
	e.ping()
	r.gate.unblock()
	res := expect[*connector.Result](e.peer)
	if res.Status != connector.StatusFailed || res.Reason != "retired" || res.Chunks != 2+3 || string(res.Incomplete) != string(binary.LittleEndian.AppendUint32(nil, 0)) {
		t.Errorf("%+v", res)
	}
	for i := range 5 {
		if got := r.store.Bytes(0, hashAt("p", i), 0) != nil; got != (i < 2) {
			t.Errorf("block %d of the preempted request is stored: %v", i, got)
		}
	}
	r.settled()
}

// A load that finds the queue's bytes used up takes the place of the newest store.
func TestALoadTakesTheNewestStoresPlace(t *testing.T) {
	const room = 4 * 1200 // a job of two blocks takes some 1,100 bytes
	r := newRig(t, func(cfg *worker.Config) { cfg.QueueBytes = room })
	e := r.engine()
	stored(t, e, 2)
	r.gate.armed.Store(true)
	first, second := e.loadJob("p", ids(20, 2)), e.loadJob("p", ids(22, 2))
	e.send(first)
	<-r.gate.entered
	e.send(e.storeJob("q", ids(1, 2)))
	r.running(2)
	older, newest := e.storeJob("r", ids(3, 2)), e.storeJob("s", ids(5, 2))
	e.send(older)
	e.send(newest)
	e.send(second)
	want(t, expect[*connector.Result](e.peer), newest.Job, connector.StatusDropped, "queue_full")
	r.gate.unblock()
	for range 4 {
		if res := expect[*connector.Result](e.peer); res.Status != connector.StatusOK {
			t.Errorf("%+v", res)
		}
	}
	if s := r.server.Stats(); s.StoreJobs.ByReason["queue_full"] != 1 || s.LoadJobs.ByReason["queue_full"] != 0 {
		t.Errorf("dropped %v stores and %v loads", s.StoreJobs.ByReason, s.LoadJobs.ByReason)
	}
	r.settled()
}
