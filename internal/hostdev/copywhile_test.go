package hostdev

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/worker"
)

type copiedOf struct {
	copied int
	err    error
}

// copyWhile copies a batch and waits for it.
func copyWhile(ctx context.Context, m worker.Mapping, batch []worker.ShardCopy, goOn func(int) bool) copiedOf {
	done := make(chan copiedOf, 1)
	m.(worker.GivingWay).CopyWhile(ctx, nil, batch, goOn, func(copied int, err error) { done <- copiedOf{copied, err} }) //nolint:forcetypeassert // it is what Map makes
	return <-done
}

// A batch ends before the first shard for which it is not to go on, and what was
// copied until then is there, and nothing else, by one lane or two.
func TestCopyWhileEndsWhenItIsTold(t *testing.T) {
	for name, last := range map[string]func(func()){"one": nil, "two": func(work func()) { work() }, "none to be had": func(func()) {}} {
		t.Run(name, func(t *testing.T) { testCopyWhileEnds(t, last) })
	}
}

func testCopyWhileEnds(t *testing.T, last func(func())) {
	t.Helper()
	l, m, batch := newLanesTest(t)
	if last != nil {
		m.(*mapping).second = newHelper(last) //nolint:forcetypeassert // it is what Map makes
	}
	for most := 1; most <= len(batch); most++ {
		for i := range batch {
			clear(batch[i].Memory)
			batch[i].Checksum = 0
		}
		got := copyWhile(t.Context(), m, batch, func(copied int) bool { return copied < most })
		if got.err != nil || got.copied != most {
			t.Fatalf("copied %d, %v; want %d", got.copied, got.err, most)
		}
		for i, c := range batch {
			if i < most && (string(c.Memory) != string(l.shard(0, c.BlockID)) || c.Checksum != sum(c.Memory)) {
				t.Errorf("of %d: shard %d differs", most, i)
			}
			if i >= most && (c.Checksum != 0 || sum(c.Memory) != sum(make([]byte, len(c.Memory)))) {
				t.Errorf("of %d: shard %d was touched", most, i)
			}
		}
	}
}

// Who gives a batch up is told how far it came, and a closed mapping copies nothing.
func TestCopyWhileIsGivenUp(t *testing.T) {
	_, m, batch := newLanesTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := copyWhile(ctx, m, batch, func(copied int) bool {
		if copied == 2 {
			cancel()
		}
		return true
	})
	if !errors.Is(got.err, context.Canceled) || got.copied != 2 {
		t.Errorf("copied %d, %v; want 2, cancelled", got.copied, got.err)
	}
	m.Close()
	if got := copyWhile(t.Context(), m, batch, func(int) bool { return true }); !errors.Is(got.err, copying.ErrClosed) || got.copied != 0 {
		t.Errorf("closed: copied %d, %v", got.copied, got.err)
	}
}

// meeting is a context that has the first lanes that look wait for each other.
type meeting struct {
	context.Context
	left  atomic.Int64
	met   chan struct{}
	fails bool // the look of the last to come
}

func (m *meeting) Err() error {
	left := m.left.Add(-1)
	if left == 0 {
		close(m.met)
	}
	<-m.met
	if left == 0 && m.fails {
		return errHeld
	}
	return nil
}

// A store's batch has two lanes where there is a second, and fails when one of them
// does, from that one's shard on.
func TestTheSecondLaneOfAStore(t *testing.T) {
	for _, fails := range []bool{false, true} {
		l, m, batch := newLanesTest(t)
		m.(*mapping).second = newHelper(func(work func()) { work() }) //nolint:forcetypeassert // it is what Map makes
		ctx := &meeting{Context: t.Context(), met: make(chan struct{}), fails: fails}
		ctx.left.Store(2) // one lane alone would wait for good
		got := copyWhile(ctx, m, batch, func(int) bool { return true })
		if fails {
			if !errors.Is(got.err, errHeld) || got.copied > 1 {
				t.Errorf("copied %d, %v; want one at most, and the lane's error", got.copied, got.err)
			}
			batch = batch[:got.copied]
		} else if got.err != nil || got.copied != len(batch) {
			t.Errorf("copied %d of %d, %v", got.copied, len(batch), got.err)
		}
		for i, c := range batch {
			if string(c.Memory) != string(l.shard(0, c.BlockID)) || c.Checksum != sum(c.Memory) {
				t.Errorf("shard %d differs", i)
			}
		}
	}
}

// A helper that does not come to the work holds nobody up, now or the next time, and
// leaves alone what was done without it.
func TestAHelperThatComesTooLate(t *testing.T) {
	come := make(chan struct{})
	h := newHelper(func(work func()) { <-come; work() })
	var done atomic.Int64
	for range 3 {
		h.share(func() { done.Add(1) })
	}
	close(come)
	h.close()
	h.close()
	if n := done.Load(); n != 3 {
		t.Errorf("work was done %d times, want 3", n)
	}
}

// A store has a second lane where there is a second core, and a thread for it.
func TestWhereAStoreHasASecondLane(t *testing.T) {
	last := func(work func()) { work() }
	for _, c := range []struct {
		device Device
		want   bool
	}{{Device{Cores: 2, Last: last}, true}, {Device{Cores: 1, Last: last}, false}, {Device{Cores: 2}, false}} {
		l := newLayout(t, []string{KindMemfd}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
		m, err := c.device.Map(os.Getpid(), l.reg, l.fds)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.(*mapping).second != nil; got != c.want { //nolint:forcetypeassert // it is what Map makes
			t.Errorf("%d cores: a second lane %v, want %v", c.device.Cores, got, c.want)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
