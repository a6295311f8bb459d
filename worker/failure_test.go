package worker_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// failingDevice fails one batch after it has copied half of it.
type failingDevice struct {
	worker.Device
	countdown atomic.Int64 // the batch that fails is the one that makes it 0
}

var errDevice = errors.New("the device fails")

func (d *failingDevice) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := d.Device.Map(pid, reg, fds)
	if err != nil {
		return nil, err
	}
	return &failingMapping{Mapping: m, device: d}, nil
}

type failingMapping struct {
	worker.Mapping
	device *failingDevice
}

func (m *failingMapping) Copy(ctx context.Context, d worker.Direction, after worker.Event, batch []worker.ShardCopy, done func(error)) {
	if m.device.countdown.Add(-1) != 0 {
		m.Mapping.Copy(ctx, d, after, batch, done)
		return
	}
	m.Mapping.Copy(ctx, d, after, batch[:len(batch)/2], func(error) { done(errDevice) })
}

// A batch that fails takes with it all that was to be copied behind it: every
// block of those is reported, and those before it hold what was stored. (The
// in-tree connector reports the failing batch's own.)
func TestFailedCopyOfALoadReportsAllBehindIt(t *testing.T) {
	device := &failingDevice{Device: hostdev.Device{}}
	r := newRig(t, func(cfg *worker.Config) { cfg.Devices = map[string]worker.Device{"host": device} })
	e := r.engine()
	stored(t, e, 10) // batches of two
	device.countdown.Store(3)
	job := e.loadJob("p", ids(30, 10))
	want(t, e.do(job), job.Job, connector.StatusFailed, "copy_failed", ids(34, 6)...)
	for i := range uint32(4) {
		if !bytes.Equal(e.block(30+i), e.block(1+i)) {
			t.Errorf("block %d is said to be loaded and is not", 30+i)
		}
	}
	job = e.loadJob("p", ids(30, 10))
	want(t, e.do(job), job.Job, connector.StatusOK, "")
	r.settled()
}

// misplacing is a store that names memory which is not there, for one put.
type misplacing struct {
	*storetest.FakeStore
	hash kv.Hash
}

func (m *misplacing) PutStart(ctx context.Context, ns store.Namespace, opts store.PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	grants, err := m.FakeStore.PutStart(ctx, ns, opts, items)
	for i := range grants {
		if items[i].Hash == m.hash {
			grants[i].Place.Segment = 7
		}
	}
	return grants, err
}

// A place that is none is the fault of its chunk, and no other's.
func TestABadPlaceIsItsChunksOwn(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) {
		fake, _ := cfg.Store.(*storetest.FakeStore)
		cfg.Store = &misplacing{FakeStore: fake, hash: hashAt("a", 2)}
	})
	e := r.engine()
	job := e.batch(e.part("a", ids(1, 4)), e.part("b", ids(5, 2)))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "bad_location")
	if !bytes.Equal(res.Incomplete, table(0)) || res.Chunks != 5 {
		t.Errorf("%+v", res)
	}
	r.settled() // and its ticket was given back
}

// A store of which a batch fails keeps what was copied before it, and the
// request's next job goes on there.
func TestFailedCopyOfAStoreIsTriedAgain(t *testing.T) {
	device := &failingDevice{Device: hostdev.Device{}}
	r := newRig(t, func(cfg *worker.Config) { cfg.Devices = map[string]worker.Device{"host": device} })
	e := r.engine()
	device.countdown.Store(2)
	job := e.storeJob("p", ids(1, 6))
	want(t, e.do(job), job.Job, connector.StatusFailed, "copy_failed")
	if n := r.store.Published(); n != 2 {
		t.Errorf("%d shards are published, those of the batch before the one that failed are 2", n)
	}
	before := len(r.store.Puts())
	for r.store.OpenPuts() > 0 { // they are revoked behind the result
		runtime.Gosched()
	}
	job = e.storeJob("p", ids(1, 6))
	if res := e.do(job); res.Status != connector.StatusOK || res.Chunks != 4 {
		t.Errorf("the next job: %+v", res)
	}
	if got := r.store.Puts()[before:]; len(got) != 4 || got[0].Depth != 2 {
		t.Errorf("the next job asked for %+v", got)
	}
	load := e.loadJob("p", ids(30, 6))
	want(t, e.do(load), load.Job, connector.StatusOK, "")
	for i := range uint32(6) {
		if !bytes.Equal(e.block(30+i), e.block(1+i)) {
			t.Errorf("block %d holds something else", 30+i)
		}
	}
	r.settled()
}
