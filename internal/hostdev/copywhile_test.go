package hostdev

import (
	"context"
	"errors"
	"testing"

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
// copied until then is there, and nothing else.
func TestCopyWhileEndsWhenItIsTold(t *testing.T) {
	l, m, batch := newLanesTest(t)
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
