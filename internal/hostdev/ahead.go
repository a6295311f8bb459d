package hostdev

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// aheadBytes bounds the memory that is made ready ahead of its use, and
	// aheadShare the part of the KV cache that it may be.
	aheadBytes = 1 << 30
	aheadShare = 2
	// aheadStep is made ready between two looks whether to stop; the kernel holds
	// the address space's lock meanwhile.
	aheadStep = 256 << 10
	// aheadRun is made ready of a group at a time, over all its segments, so that
	// the blocks that come first are whole first.
	aheadRun = 4 << 20
	// aheadRoom is left to those who use memory: what is made ready here is a wish,
	// and the kernel kills who takes more than there is.
	aheadRoom = 256 << 20
	// loadPause is the wait between two looks whether a load goes on.
	loadPause = 2 * time.Millisecond
)

// ahead makes the pages of blocks ready that an engine has not used yet but will
// next: it takes its blocks in the order of their numbers until all were used
// once. Otherwise the first load into a block would wait for its pages, which
// takes several times as long as the copy.
//
// Only so much is made ready: an engine's KV cache takes memory as it is used,
// and that shall stay so.
type ahead struct {
	groups []aheadGroup
	wake   chan struct{} // of capacity 1
	stop   chan struct{}
	loads  atomic.Int32 // batches under way, which go first
	room   func() uint64

	mu    sync.Mutex
	reach []uint32 // by group: blocks below were used
}

// aheadGroup is a group's part. It belongs to the goroutine.
type aheadGroup struct {
	segments []segment
	blocks   uint32 // of the engine
	ahead    uint32 // blocks to be ready beyond the reach
	step     uint32 // blocks of a run
	ready    uint32 // blocks below are ready
}

// newAhead returns nil when there is nothing to do: no region is mapped. room
// tells how much more memory may be used.
func newAhead(m *mapping, blocks int, room func() uint64) *ahead {
	total := 0
	for i := range m.regions {
		total += len(m.regions[i].data)
	}
	if total == 0 {
		return nil
	}
	a := &ahead{wake: make(chan struct{}, 1), stop: make(chan struct{}), room: room, reach: make([]uint32, len(m.groups))}
	share := min(aheadBytes, total/aheadShare) / len(m.groups)
	for _, segments := range m.groups {
		g := aheadGroup{blocks: uint32(blocks)}
		bytes := 0
		for _, s := range segments {
			if s.region.mapped != nil {
				g.segments = append(g.segments, s)
				bytes += s.bytes
			}
		}
		if bytes > 0 {
			g.ahead, g.step = uint32(max(1, share/bytes)), uint32(max(1, aheadRun/bytes))
		}
		a.groups = append(a.groups, g)
	}
	return a
}

// used notes that the engine uses a block, which moves the window on.
func (a *ahead) used(group int, block uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if block < a.reach[group] {
		return
	}
	a.reach[group] = block + 1
	select {
	case a.wake <- struct{}{}:
	default: // it is told already
	}
}

// run keeps the window ready until stop is closed, or pages can't be had.
func (a *ahead) run() {
	for a.catchUp() {
		select {
		case <-a.wake:
		case <-a.stop:
			return
		}
	}
}

// catchUp makes the window ready as it is now. False: do not go on.
func (a *ahead) catchUp() bool {
	for more := true; more; {
		more = false
		a.mu.Lock()
		reach := slices.Clone(a.reach)
		a.mu.Unlock()
		for i := range a.groups {
			g := &a.groups[i]
			target := min(uint64(reach[i])+uint64(g.ahead), uint64(g.blocks))
			if len(g.segments) == 0 || uint64(g.ready) >= target {
				continue
			}
			if a.room() < aheadRoom {
				return true // perhaps when the next block is used
			}
			end := min(g.ready+g.step, uint32(target))
			for k := range g.segments {
				if !a.populate(&g.segments[k], g.ready, end) {
					return false
				}
			}
			g.ready = end
			more = true
		}
	}
	return true
}

// populate makes the pieces of some blocks ready, with what lies between them.
func (a *ahead) populate(s *segment, from, to uint32) bool {
	for at, end := s.at(from), s.at(to-1)+uint64(s.bytes); at < end; {
		if !a.turn() {
			return false
		}
		n := min(aheadStep, end-at)
		if s.region.mapped.Populate(at, n) != nil {
			return false // the pages come with their use
		}
		at += n
	}
	return true
}

// turn waits until no load is under way: a request waits for that, with the
// cores and the memory that we would take. False: stop.
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
