package hostdev

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// aheadStep is entered between two looks whether to stop; the kernel holds the
	// address space's lock meanwhile.
	aheadStep = 1 << 20
	// loadPause is the wait between two looks whether a load goes on.
	loadPause = 2 * time.Millisecond
)

// ahead enters an engine's memory in this process's page table before a load
// does, which would otherwise wait for a fault every page: twice the time of the
// copy.
//
// INVARIANT: it takes no memory. Engines touch their KV memory before they
// register it; a region that is not there whole is left to its use, so that the
// pages are where, and are counted against whom, the engine has them.
type ahead struct {
	regions []*region
	loads   atomic.Int32 // batches under way, which go first
	ending  sync.Once
	stop    chan struct{} // closed by ending
	running sync.WaitGroup
}

// newAhead returns nil when there is nothing to do.
func newAhead(regions []region) *ahead {
	a := &ahead{stop: make(chan struct{})}
	for i := range regions {
		if regions[i].mapped != nil && regions[i].whole {
			a.regions = append(a.regions, &regions[i])
		}
	}
	if len(a.regions) == 0 {
		return nil
	}
	return a
}

// run returns when everything is entered, or stop is closed.
func (a *ahead) run() {
	for _, r := range a.regions {
		size := uint64(len(r.data))
		for at := uint64(0); at < size; at += aheadStep {
			if !a.turn() || r.mapped.Populate(at, min(aheadStep, size-at)) != nil {
				return // what is left comes with its use
			}
		}
	}
}

// end stops it and waits. A second call, and that of a nil one, does nothing.
func (a *ahead) end() {
	if a == nil {
		return
	}
	a.ending.Do(func() { close(a.stop) })
	a.running.Wait()
}

// turn waits until no load is under way: a request waits for that, with the
// cores that we would take. False: stop.
func (a *ahead) turn() bool {
	for {
		select {
		case <-a.stop:
			return false
		default:
		}
		if a.loads.Load() == 0 {
			return true
		}
		timer := time.NewTimer(loadPause)
		select {
		case <-a.stop:
		case <-timer.C:
		}
		timer.Stop()
	}
}
