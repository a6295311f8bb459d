package client

import (
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

const (
	// warmStep is made ready between two looks whether to stop.
	warmStep = 256 << 10
	// warmPause is the wait for the master to allocate more. It grows to
	// warmPauseMax, as the master may never get what it wants.
	warmPause    = 50 * time.Millisecond
	warmPauseMax = 5 * time.Second
)

// startWarmingLocked enters a segment's pages in the page table behind what the
// master allocates, so that no store or load waits for them. Its goroutine holds
// the segment.
func (c *Client) startWarmingLocked(i int) {
	s := c.segments[i]
	stop := make(chan struct{})
	s.cold = sync.OnceFunc(func() { close(stop) })
	s.held++
	mapping, from := s.mapping, s.info.DataOffset
	c.warming.Go(func() {
		c.cfg.Background(func() { warm(mapping, from, stop) })
		c.mu.Lock()
		defer c.mu.Unlock()
		s.held--
		if !c.closed {
			c.closeIdleLocked(i)
		}
	})
}

// stopWarming does not wait.
func (s *segment) stopWarming() { s.cold() }

// warm makes a segment ready from an offset on until all of it is, stop is
// closed, or pages can't be had.
func warm(mapping Mapping, at uint64, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := warmPause; ; pause = min(2*pause, warmPauseMax) {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		end, done := embedded.PreparedBytes(mapping.Bytes())
		for at < end {
			select {
			case <-stop:
				return
			default:
			}
			n := min(warmStep, end-at)
			if mapping.Populate(at, n) != nil {
				return
			}
			at += n
			pause = warmPause
		}
		if done {
			return
		}
		timer.Reset(pause)
	}
}
