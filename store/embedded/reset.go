package embedded

import (
	"context"
	"errors"
	"sync"

	"github.com/mooncake-sidecar/sidecar/store"
)

// A reset is a new generation of the namespace: every record has the generation
// in the word that a lookup compares, so that from one moment on none of the
// chunks is found, however many there are. They are dropped behind that, a few at
// a time, and are until then what any chunk is: they may be evicted, and count for
// their owners. Puts of theirs end void. The number of resets stands in the
// segment before the reset is answered, and a master that takes over drops what
// is of an earlier one.

const (
	// staleStep is how many records are looked at, at a time, for those that were
	// reset.
	staleStep = 1024
	// resetSteps is how many times a reset does so before it leaves the rest to
	// Tick.
	resetSteps = 64
)

// staleSweep goes round the records for those that were reset.
type staleSweep struct {
	at, left uint32 // where it goes on, and how many records it has to look at
	end      uint32 // records from here on are younger than the last reset
	// resets began since there was nothing to do. INVARIANT: below generations, so
	// that no chunk is taken for one of a later generation.
	resets uint32
}

// Reset drops the chunks of one namespace, on the disk too. Puts that are open
// end void. An error that is disk.ErrUncertain says that it is done, but that the
// disk has not taken note of it.
func (m *Master) Reset(id store.NamespaceID) error {
	for begun := false; !begun; {
		var err error
		if begun, err = m.beginReset(id); err != nil {
			return err
		}
		if !begun {
			m.sweepStale()
		}
	}
	if m.onReset != nil {
		m.onReset(id)
	}
	for range resetSteps {
		m.betweenSteps()
		if !m.sweepStale() {
			break
		}
	}
	// An engine waits for all of it together; what one takes is not the other's.
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	var disk, cluster error
	var settling sync.WaitGroup
	settling.Go(func() { disk = m.settleTier(ctx) })
	cluster = m.resetCluster(ctx, id)
	settling.Wait()
	return errors.Join(disk, cluster)
}

// OnReset has f called with each namespace that was reset, when the new generation
// has begun and before the reset is answered. f must return at once.
//
// REQUIRES: the master serves nobody yet.
func (m *Master) OnReset(f func(store.NamespaceID)) { m.onReset = f }

// beginReset begins a new generation. False: too many were begun of which the
// chunks are not dropped yet.
func (m *Master) beginReset(id store.NamespaceID) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespaceLocked(id)
	if err != nil || m.stale.resets == generations-1 {
		return false, err
	}
	if tier := m.disk(); tier != nil {
		tier.Reset(n.digest)
	}
	resets := m.seg.resets(int(id)) + 1
	m.seg.setResets(int(id), resets)
	m.removals().Add(1)
	if m.lower != nil && m.lower.cluster != nil {
		m.lower.cluster.Leave(n.digest)
	}
	m.generation[id].Store(resets % generations)
	m.stale.left, m.stale.end = m.fresh, m.fresh
	m.stale.resets++
	m.feed.add(Change{Kind: Cleared, Namespace: id})
	return true, nil
}

// sweepStale drops some of the chunks that were reset. True: there may be more.
func (m *Master) sweepStale() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sweepStaleLocked()
}

func (m *Master) sweepStaleLocked() bool {
	s := &m.stale
	for range min(s.left, m.opts.steps.stale) {
		if s.at >= s.end {
			s.at = 0
		}
		switch state := m.live[s.at].state; {
		case state == Gone || state == Evicting || !m.staleLocked(s.at):
		case state == Creating:
			m.dropCreatingLocked(s.at)
		default:
			m.dropLocked(s.at, RemovedReset)
		}
		s.at++
		s.left--
	}
	if s.left == 0 {
		s.resets = 0
	}
	return s.left > 0
}

func (m *Master) generationOf(ns store.NamespaceID) uint32 { return m.generation[ns].Load() }

// staleLocked tells whether a record's namespace was reset since it was stored.
//
// REQUIRES: the record is neither gone nor evicting.
func (m *Master) staleLocked(rec uint32) bool {
	scope := uint16(m.seg.recordWord(rec, wordScope))
	return uint32(scope>>namespaceBits) != m.generation[scope%maxNamespaces].Load()
}
