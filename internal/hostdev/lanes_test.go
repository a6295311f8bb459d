package hostdev

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// newLanesTest returns a mapping that divides a load's batch among lanes and a
// batch that is worth it, into blocks that hold something else.
func newLanesTest(t *testing.T) (*layout, worker.Mapping, []worker.ShardCopy) {
	t.Helper()
	const piece = 600 << 10
	l := newLayout(t, []string{KindMemfd}, numBlocks*piece, []int{piece}, []connector.KVSegment{seg(0, 0, 0, piece, piece)})
	m := l.open(t)
	m.(*mapping).lanes = 3 //nolint:forcetypeassert // it is what Map makes
	random := rand.NewChaCha8([32]byte{9})
	var batch []worker.ShardCopy
	for block := range uint32(numBlocks - 1) {
		batch = append(batch, worker.ShardCopy{BlockID: block + 1, Memory: make([]byte, piece)})
		_, _ = random.Read(batch[block].Memory) // it never fails
	}
	return l, m, batch
}

// Lanes copy all of a batch, however it divides.
func TestLanesCopyEverything(t *testing.T) {
	l, m, batch := newLanesTest(t)
	for n := 1; n <= len(batch); n++ {
		for i := range batch {
			batch[i].Memory[0]++ // what is there already is not what is to come
			batch[i].Checksum = 0
		}
		if err := run(t, m, worker.Load, batch[:n]); err != nil {
			t.Fatal(err)
		}
		for _, c := range batch[:n] {
			if !bytes.Equal(l.shard(0, c.BlockID), c.Memory) || c.Checksum != sum(c.Memory) {
				t.Errorf("a batch of %d: block %d differs", n, c.BlockID)
			}
		}
	}
}

// heldLane is a context that holds up the lane that looks whether to go on
// last, and ends it with an error.
type heldLane struct {
	context.Context
	looks   atomic.Int64
	last    int64
	release chan struct{}
}

var errHeld = errors.New("held")

func (h *heldLane) Err() error {
	if h.looks.Add(1) == h.last {
		<-h.release
		return errHeld
	}
	return nil
}

// A load is over when its last lane is, and has failed when one has: until then
// the engine's blocks are written to.
func TestALoadIsOverWithItsLastLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m, batch := newLanesTest(t)
		// Every shard of the batch is one look.
		ctx := &heldLane{Context: t.Context(), last: int64(len(batch)), release: make(chan struct{})}
		done := make(chan error, 1)
		m.Copy(ctx, worker.Load, nil, batch, func(err error) { done <- err })
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("the load was over with a lane under way: %v", err)
		default:
		}
		close(ctx.release)
		if err := <-done; !errors.Is(err, errHeld) {
			t.Errorf("got %v, want the lane's error", err)
		}
		m.Close()
	})
}
