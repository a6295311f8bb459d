package node

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

func TestCacheReady(t *testing.T) {
	c, err := NewCache(evict.NameLRU, 4)
	if err != nil {
		t.Fatal(err)
	}
	keys := []uint64{11, 12, 13, 14}
	c.Insert(keys[:3], 1, 5, 9)
	for _, x := range []struct {
		now             time.Duration
		resident, ready int
	}{{4, 3, 0}, {5, 3, 1}, {8, 3, 1}, {9, 3, 3}} {
		if resident, ready := c.Leading(keys, x.now); resident != x.resident || ready != x.ready {
			t.Errorf("at %d: %d resident, %d ready, want %d, %d", x.now, resident, ready, x.resident, x.ready)
		}
	}
	c.Insert(keys[:2], 2, 3, 3) // comes sooner by another way
	if _, ready := c.Leading(keys, 4); ready != 2 {
		t.Errorf("%d ready after an earlier arrival, want 2", ready)
	}
	// 13 is the least recent: it goes for what comes.
	c.Insert([]uint64{21, 22}, 0, 0, 0)
	if resident, _ := c.Leading(keys, 99); resident != 2 || c.Len() != 4 {
		t.Errorf("%d of the chain resident, %d in all; want 2 and 4", resident, c.Len())
	}
	c.Touch([]uint64{11, 12})
	c.Insert([]uint64{31, 32}, 0, 0, 0)
	if resident, _ := c.Leading(keys, 99); resident != 2 {
		t.Error("a block that was just used is gone")
	}
	if _, err := NewCache("none", 4); err == nil {
		t.Error("a policy that does not exist was taken")
	}
}

// TestBatch: against a naive batch, one iteration after the other.
func TestBatch(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	costs := model.Default()
	type arrival struct {
		at            time.Duration
		context, left int
	}
	var arrivals []arrival
	for at := time.Duration(0); len(arrivals) < 200; at += time.Duration(random.IntN(300)) * time.Millisecond {
		arrivals = append(arrivals, arrival{at, 100 + random.IntN(20000), random.IntN(60)})
	}
	var q event.Queue
	const room = 60_000
	b := NewBatch(&q, &costs, room)
	got := make([][]time.Duration, len(arrivals))
	for i, a := range arrivals {
		q.At(a.at, func() {
			b.Join(&Sequence{ContextTokens: a.context, LeftTokens: a.left, Done: func(gaps []time.Duration) { got[i] = append([]time.Duration{0}, gaps...) }})
		})
	}
	for q.Step() {
	}
	if n, tokens := b.Load(); n != 0 || tokens != 0 {
		t.Errorf("%d sequences with %d tokens are left", n, tokens)
	}

	// The naive batch: arrivals up to a moment wait; those that fit are taken in order.
	type live struct{ i, context, left int }
	var running, waiting []live
	want := make([][]time.Duration, len(arrivals))
	last := make([]time.Duration, len(arrivals))
	now, next, full := time.Duration(0), 0, 0
	for next < len(arrivals) || len(running)+len(waiting) > 0 {
		if len(running)+len(waiting) == 0 {
			now = max(now, arrivals[next].at)
		}
		for next < len(arrivals) && arrivals[next].at <= now {
			a := arrivals[next]
			want[next], last[next] = []time.Duration{0}, a.at
			if a.left > 0 {
				waiting = append(waiting, live{next, a.context, a.left})
			}
			next++
		}
		planned, context := 0, 0
		for _, l := range running {
			planned += l.context + l.left
		}
		for len(waiting) > 0 && (len(running) == 0 || planned+waiting[0].context+waiting[0].left <= room) {
			planned += waiting[0].context + waiting[0].left
			running, waiting = append(running, waiting[0]), waiting[1:]
		}
		if len(waiting) > 0 {
			full++
		}
		if len(running) == 0 {
			continue
		}
		for _, l := range running {
			context += l.context
		}
		now += model.Duration(costs.Iteration(len(running), int64(context)))
		for k := range running {
			l := &running[k]
			l.context++
			l.left--
			want[l.i] = append(want[l.i], now-last[l.i])
			last[l.i] = now
		}
		running = slices.DeleteFunc(running, func(l live) bool { return l.left == 0 })
	}
	if full == 0 {
		t.Error("memory was never short: the test does not reach that")
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Fatalf("sequence %d: gaps %v, want %v", i, got[i], want[i])
		}
	}
}

// TestYounger counts by when sequences joined.
func TestYounger(t *testing.T) {
	costs := model.Default()
	var q event.Queue
	b := NewBatch(&q, &costs, 1<<40)
	for at := range 5 {
		q.At(time.Duration(at)*time.Second, func() { b.Join(&Sequence{ContextTokens: 1, LeftTokens: 1000, Done: func([]time.Duration) {}}) })
	}
	for q.Now() < 4500*time.Millisecond {
		q.Step()
	}
	if got := b.Younger(3 * time.Second); got != 2 {
		t.Errorf("%d joined at 3 s or later, want 2", got)
	}
}
