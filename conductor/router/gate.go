package router

import (
	"container/heap"
	"context"
	"errors"
	"sync"
)

// errFull: as many requests wait as may.
var errFull = errors.New("too many requests")

// gate bounds the requests that are under way. Those that wait for a place get it by
// priority, the least first, and then by arrival; when too many wait, the least urgent
// is turned away.
type gate struct {
	places, most int

	mu      sync.Mutex
	taken   int
	arrived uint64
	waiting waiters
}

type waiter struct {
	priority int
	arrived  uint64
	at       int // in the heap; -1: it has got its answer
	answer   chan error
}

// enter waits for a place until ctx ends. Who has one leaves.
func (g *gate) enter(ctx context.Context, priority int) error {
	g.mu.Lock()
	if g.taken < g.places {
		g.taken++
		g.mu.Unlock()
		return nil
	}
	g.arrived++
	w := &waiter{priority: priority, arrived: g.arrived, answer: make(chan error, 1)}
	heap.Push(&g.waiting, w)
	if len(g.waiting) > g.most {
		g.waiting.last().turnAway(g)
	}
	g.mu.Unlock()
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.at >= 0 {
		heap.Remove(&g.waiting, w.at)
	} else if err := <-w.answer; err == nil {
		g.leaveLocked()
	}
	return ctx.Err()
}

// turnAway tells a waiter that there is no place. The gate is locked.
func (w *waiter) turnAway(g *gate) {
	heap.Remove(&g.waiting, w.at)
	w.answer <- errFull
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked()
}

func (g *gate) leaveLocked() {
	if len(g.waiting) == 0 {
		g.taken--
		return
	}
	w, _ := heap.Pop(&g.waiting).(*waiter)
	w.answer <- nil
}

func (g *gate) load() (taken, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken, len(g.waiting)
}

// waiters are a heap, the most urgent first.
type waiters []*waiter

func (h waiters) before(a, b *waiter) bool {
	return a.priority < b.priority || a.priority == b.priority && a.arrived < b.arrived
}

// last is the least urgent. There are few waiters, and this is for when there are too
// many.
func (h waiters) last() *waiter {
	last := h[0]
	for _, w := range h {
		if h.before(last, w) {
			last = w
		}
	}
	return last
}

// Len implements heap.Interface.
func (h waiters) Len() int { return len(h) }

// Less implements heap.Interface.
func (h waiters) Less(i, j int) bool { return h.before(h[i], h[j]) }

// Swap implements heap.Interface.
func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *waiters) Push(x any) {
	w, _ := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface.
func (h *waiters) Pop() any {
	n := len(*h) - 1
	w := (*h)[n]
	w.at = -1
	(*h)[n] = nil
	*h = (*h)[:n]
	return w
}
