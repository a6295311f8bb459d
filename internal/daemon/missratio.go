package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/missratio"
)

// curveInterval is how often the miss-ratio curve takes in what was looked up.
const curveInterval = time.Second

// curve is the store's miss-ratio curve, kept up while the daemon runs.
type curve struct {
	tap *missratio.Tap

	mu    sync.Mutex // guards inner
	inner *missratio.Curve
}

// newCurve begins a curve of the named policy.
func newCurve(policy string) (*curve, error) {
	if !evict.Known(policy) {
		return nil, fmt.Errorf("miss-ratio curve: %w: %q", evict.ErrUnknownPolicy, policy)
	}
	c := &curve{}
	c.inner, c.tap = missratio.New(missratio.Options{NewPolicy: func(records int) evict.Policy {
		p, err := evict.New(policy, records)
		if err != nil {
			panic("BUG: " + err.Error()) // it is known
		}
		return p
	}})
	return c, nil
}

// run takes in what was looked up until ctx ends. capacity returns the bytes of
// memory that the store has.
func (c *curve) run(ctx context.Context, capacity func() uint64) {
	ticker := time.NewTicker(curveInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.drain(capacity())
		}
	}
}

func (c *curve) drain(capacity uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inner.Drain(capacity)
}

// points returns the curve, for scrapes and operators.
func (c *curve) points() []missratio.Point {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner.Points()
}
