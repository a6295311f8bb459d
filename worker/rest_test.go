package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// slowCopies is a device whose batches take a time at least.
type slowCopies struct {
	worker.Device
	take time.Duration
}

func (d slowCopies) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := d.Device.Map(pid, reg, fds)
	if err != nil {
		return nil, err
	}
	return slowMapping{m, d.take}, nil
}

type slowMapping struct {
	worker.Mapping
	take time.Duration
}

func (m slowMapping) Copy(ctx context.Context, d worker.Direction, after worker.Event, batch []worker.ShardCopy, done func(error)) {
	go func() {
		time.Sleep(m.take)
		m.Mapping.Copy(ctx, d, after, batch, done)
	}()
}

// At a pace of 50 % a store takes twice as long as its pieces copy, but for the
// rest behind the last of them. The machine may make that longer, and never shorter.
func TestAPacedStoreRests(t *testing.T) {
	const copying, pieces = 10 * time.Millisecond, 5
	took := make(told, 1)
	r := newRig(t, func(cfg *worker.Config) {
		cfg.StorePace = 50
		cfg.Devices = map[string]worker.Device{"host": slowCopies{hostdev.Device{}, copying}}
		cfg.StoreTimes = worker.JobTimes{Took: took, Wait: make(told, 1), Move: make(told, 1)}
	})
	e := r.engine()
	store := e.storeJob("p", ids(1, 2*pieces)) // batches of two
	want(t, e.do(store), store.Job, connector.StatusOK, "")
	const least = (2*pieces - 1) * copying
	if all := time.Duration(<-took * float64(time.Second)); all < least {
		t.Errorf("it took %v, want %v and more", all, least)
	}
	r.settled()
}
