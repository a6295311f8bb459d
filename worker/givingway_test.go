package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// stepped is a device that gives way: a shard is the least that a store copies, and
// between two of them it waits for the test.
type stepped struct {
	worker.Device
	between chan struct{} // a store is between two shards
	proceed chan struct{}
	pieces  atomic.Int64 // of stores that were begun
	ended   chan int     // by goOn: the shards copied
}

func (d *stepped) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := d.Device.Map(pid, reg, fds)
	if err != nil {
		return nil, err
	}
	return steppedMapping{m.(worker.GivingWay), d}, nil //nolint:forcetypeassert // hostdev's is one
}

type steppedMapping struct {
	worker.GivingWay
	d *stepped
}

func (m steppedMapping) PieceBytes() (load, store int) { return 1 << 20, blockBytes }

func (m steppedMapping) CopyWhile(ctx context.Context, after worker.Event, batch []worker.ShardCopy, goOn func(int) bool, done func(int, error)) {
	m.d.pieces.Add(1)
	m.GivingWay.CopyWhile(ctx, after, batch, func(copied int) bool {
		m.d.between <- struct{}{}
		<-m.d.proceed
		return goOn(copied)
	}, func(copied int, err error) {
		if copied < len(batch) {
			m.d.ended <- copied
		}
		done(copied, err)
	})
}

// newSteppedTest returns an engine whose store of five blocks, which it has sent,
// is between the second block and the third.
func newSteppedTest(t *testing.T) (*rig, *engine, *stepped, *connector.StoreBatch) {
	t.Helper()
	d := &stepped{Device: hostdev.Device{}, between: make(chan struct{}), proceed: make(chan struct{}), ended: make(chan int, 8)}
	r := newRig(t, func(cfg *worker.Config) {
		cfg.Devices = map[string]worker.Device{"host": d}
		cfg.BatchShards = 16
	})
	e := r.engine()
	job := e.storeJob("p", ids(1, 5))
	e.send(job)
	d.await(t)
	d.proceed <- struct{}{}
	d.await(t)
	return r, e, d, job
}

// await waits until a store is between two shards.
func (d *stepped) await(t *testing.T) {
	t.Helper()
	select {
	case <-d.between:
	case <-time.After(time.Minute):
		t.Fatal("no store is between two shards: a piece ended early")
	}
}

// goOn lets a store that is between two shards copy to its end.
func (d *stepped) goOn(t *testing.T, more int) {
	t.Helper()
	for range more {
		d.proceed <- struct{}{}
		d.await(t)
	}
	d.proceed <- struct{}{}
}

// A store that nobody waits for is copied in one piece.
func TestAStoreThatIsAloneIsOnePiece(t *testing.T) {
	r, e, d, job := newSteppedTest(t)
	d.goOn(t, 2)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusOK, "")
	if n := d.pieces.Load(); n != 1 {
		t.Errorf("copied in %d pieces, want one", n)
	}
	r.settled()
}

// A load that arrives while a store copies goes first; then the store goes on.
func TestAStoreGivesWayToALoad(t *testing.T) {
	r, e, d, job := newSteppedTest(t)
	load := e.loadJob("p", ids(20, 2)) // of nothing that is stored yet
	r.store.SetHook(func(call string) error {
		if call != "Get" {
			return nil
		}
		r.store.SetHook(nil)
		r.running(2) // the load has begun and is not over
		d.proceed <- struct{}{}
		select {
		case copied := <-d.ended:
			if copied != 2 {
				t.Errorf("the store gave way after %d blocks, want 2", copied)
			}
		case <-d.between:
			t.Error("beside a load the store went on")
			d.proceed <- struct{}{}
		}
		return nil
	})
	e.send(load)
	want(t, expect[*connector.Result](e.peer), load.Job, connector.StatusFailed, "absent", ids(20, 2)...)
	d.await(t) // in the second piece, of which a block is copied
	d.goOn(t, 1)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusOK, "")
	again := e.loadJob("p", ids(20, 5))
	want(t, e.do(again), again.Job, connector.StatusOK, "")
	r.settled()
}

// What is left of a request that is preempted while its store copies is left alone.
func TestAStoreGivesWayToAPreemption(t *testing.T) {
	r, e, d, _ := newSteppedTest(t)
	e.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-p"}})
	e.ping()
	d.proceed <- struct{}{}
	res := expect[*connector.Result](e.peer)
	if res.Status != connector.StatusFailed || res.Reason != "retired" || res.Chunks != 2 {
		t.Errorf("%+v", res)
	}
	r.settled()
}
