package cudadev

import (
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
)

// Pool is the store's memory as it is mapped in this process: what a GPU may be
// made to reach. It is safe for concurrent use.
type Pool struct {
	mu       sync.Mutex
	segments []*hostSegment // guarded by mu
	changed  chan struct{}  // closed and replaced when segments changes; guarded by mu
}

// hostSegment is one mapped segment.
type hostSegment struct {
	data     []byte
	prepared func() (bytes uint64, all bool)

	// pinning is held while a step of it is registered or given back.
	pinning sync.Mutex
	gone    bool       // guarded by pinning
	at      uint64     // where the next step begins; guarded by pinning
	failed  bool       // what is behind at can't be registered; guarded by pinning
	unpin   func(step) // set while steps is not empty; guarded by pinning
	accept  func()     // takes back what was said of failed; set with it, guarded by pinning

	mu    sync.Mutex
	steps []step // registered, in order; guarded by mu
}

// step is a range that the GPU reaches.
type step struct {
	from, to uint64
	host     cuda.Host
}

// NewPool returns an empty pool.
func NewPool() *Pool { return &Pool{changed: make(chan struct{})} }

// Add adds a mapped segment. prepared says up to where its pages are there, which
// grows, and whether that is all.
func (p *Pool) Add(data []byte, prepared func() (bytes uint64, all bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.segments = append(p.segments, &hostSegment{data: data, prepared: prepared})
	close(p.changed)
	p.changed = make(chan struct{})
}

// Remove gives a segment back to the driver, so that it may be unmapped.
//
// REQUIRES: no copy has to do with it.
func (p *Pool) Remove(data []byte) {
	p.mu.Lock()
	var gone *hostSegment
	for i, s := range p.segments {
		if addressOf(s.data) == addressOf(data) {
			gone = s
			p.segments = append(p.segments[:i:i], p.segments[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	if gone != nil {
		gone.pinning.Lock()
		defer gone.pinning.Unlock()
		gone.gone = true
		gone.release()
	}
}

// list returns the segments of now, and what is closed when there are others.
func (p *Pool) list() ([]*hostSegment, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments, p.changed
}

// bytes is how much there is.
func (p *Pool) bytes() (n int64) {
	segments, _ := p.list()
	for _, s := range segments {
		n += int64(len(s.data))
	}
	return n
}

// release gives back what is registered.
//
// REQUIRES: pinning is held.
func (s *hostSegment) release() {
	s.mu.Lock()
	steps := s.steps
	s.steps, s.at = nil, 0
	s.mu.Unlock()
	if s.failed {
		s.failed = false
		s.accept()
	}
	for _, st := range steps {
		s.unpin(st)
	}
}

// find returns where the GPU sees memory, as far as that is one range, and how
// many bytes of it. Without an address it can't see them.
func (p *Pool) find(memory []byte) (at cuda.Address, n int) {
	segments, _ := p.list()
	from := addressOf(memory)
	for _, s := range segments {
		base := addressOf(s.data)
		if from < base || from >= base+uintptr(len(s.data)) {
			continue
		}
		return s.find(uint64(from-base), len(memory))
	}
	return 0, len(memory)
}

func (s *hostSegment) find(offset uint64, bytes int) (at cuda.Address, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.steps {
		switch st := &s.steps[i]; {
		case offset < st.from:
			return 0, int(min(uint64(bytes), st.from-offset))
		case offset < st.to:
			return st.host.At + cuda.Address(offset-st.from), int(min(uint64(bytes), st.to-offset))
		}
	}
	return 0, bytes
}

const (
	// pinPause is the wait for more of a segment to be there; it doubles.
	pinPause    = 20 * time.Millisecond
	pinPauseMax = 2 * time.Second
)

// pin registers segments step by step until stop is closed, and then gives all of
// them back.
func (p *Pool) pin(g *gpu, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := pinPause; ; pause = min(2*pause, pinPauseMax) {
		segments, changed := p.list()
		waiting := false
		for _, s := range segments {
			for moved := true; moved && !isClosed(stop); {
				var more bool
				moved, more = s.pinStep(g)
				waiting = waiting || more
				if moved {
					pause = pinPause
				}
			}
		}
		timer.Reset(pause)
		wait := timer.C
		if !waiting {
			wait = nil
		}
		select {
		case <-stop:
			for _, s := range segments {
				s.pinning.Lock()
				s.release()
				s.pinning.Unlock()
			}
			return
		case <-changed:
		case <-wait:
		}
	}
}

func isClosed(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// pinStep registers the next step of a segment if all of it is there. moved: there
// may be another; more: there will be later.
func (s *hostSegment) pinStep(g *gpu) (moved, more bool) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	size := uint64(len(s.data))
	if s.gone || s.failed || s.at >= size {
		return false, false
	}
	end, all := s.prepared()
	end = min(end, size)
	to := min(s.at+g.cfg.StepBytes, size)
	if end < to {
		if !all || end <= s.at {
			return false, !all
		}
		to = end
	}
	host, err := g.register(s.data[s.at:to])
	if err != nil {
		// What there is stays in use; the rest goes by the buffer.
		rest := size - s.at
		s.failed, s.accept = true, func() { g.stats.unregistered.Add(-int64(rest)) }
		g.pinFailed(rest, err)
		return false, false
	}
	s.unpin = func(st step) { g.unregister(st.host, st.to-st.from) }
	s.mu.Lock()
	s.steps = append(s.steps, step{from: s.at, to: to, host: host})
	s.mu.Unlock()
	s.at = to
	if to == size {
		g.cfg.Log.Info("the GPU reaches the store's memory", "bytes", size)
	}
	return true, true
}
