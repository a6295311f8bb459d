package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// removeStep is how many records a removal looks at before it lets others have
// the store.
const removeStep = 1 << 10

// evictStep is the same for chunks that are evicted by command.
const evictStep = 256

// Remove drops the chunks of the scope, pinned or not, in memory and on the disk; in
// the cluster, too, if it Removes, as far as it can tell them (see removeFaraway).
// Puts that are open end void; what is being read is freed when the reader is
// done. Chunks that are stored meanwhile may stay. An error that is
// disk.ErrUncertain says that it is done, but that the disk has not taken note of
// it, or that the cluster's part is forgotten if this process is killed, and one that
// is ErrRemovals, that the cluster keeps some. One of ctx says that a part is done.
func (m *Master) Remove(ctx context.Context, scope Scope) (Removal, error) {
	sel, err := m.selection(&scope)
	if err != nil {
		return Removal{}, err
	}
	var done Removal
	// The disk first: from here until all is done it takes nothing in that may be
	// meant, and what is on its way up is not let in. So what is meant is in memory
	// or nowhere.
	release := m.holdBelow(sel)
	defer release()
	m.removeFaraway(&done, sel)
	var below error
	switch {
	case scope.Chain:
		below, err = m.removeChain(ctx, &done, sel)
	case len(scope.Hashes) > 0:
		done.OnDisk = m.forgetHashes(sel)
		err = m.removeHashes(ctx, &done, sel)
	default:
		m.forgetWide(&done, sel)
		err = m.removeScanned(ctx, &done, sel, sel.has)
	}
	if err != nil {
		return done, err
	}
	return done, errors.Join(below, m.settleTier(ctx), m.settleFaraway(), done.stayed())
}

// selection is a scope in the store's own numbers.
type selection struct {
	scope        *Scope
	anyNamespace bool
	namespace    uint16
	anyTag       bool
	digest       *[32]byte // the namespace in the disk's words
	groups       int       // of the namespace
	tagText      *string   // the tag in the disk's words; nil: any
	tags         []string  // the master's, by number
}

// has tells whether a record is meant. Tags are compared as text: one of which
// nothing is left gives its number to another, and one that comes up from the disk
// gets a number, also between two steps of a removal.
//
// REQUIRES: the master's lock is held.
func (s *selection) has(r *record) bool {
	return (s.anyNamespace || r.namespace == s.namespace) && (s.anyTag || s.tags[r.saltTag] == *s.tagText)
}

func (m *Master) selection(scope *Scope) (*selection, error) {
	narrowed := scope.Namespace != nil || scope.SaltTag != nil || len(scope.Hashes) > 0
	switch {
	case scope.Everything && (narrowed || scope.Chain):
		return nil, fmt.Errorf("%w: everything, or a part; not both", ErrScope)
	case !scope.Everything && !narrowed:
		return nil, fmt.Errorf("%w: name a namespace, a salt tag or hashes, or ask for everything", ErrScope)
	case len(scope.Hashes) > 0 && scope.Namespace == nil:
		return nil, fmt.Errorf("%w: hashes mean chunks of a namespace; name it", ErrScope)
	case scope.Chain && len(scope.Hashes) == 0:
		return nil, fmt.Errorf("%w: a chain begins at a hash; name it", ErrScope)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	sel := &selection{scope: scope, anyNamespace: scope.Namespace == nil, anyTag: scope.SaltTag == nil, tags: m.tags}
	if !sel.anyNamespace {
		ns, err := m.namespaceLocked(*scope.Namespace)
		if err != nil {
			return nil, err
		}
		sel.namespace, sel.digest, sel.groups = uint16(*scope.Namespace), &ns.digest, len(ns.groups)
	}
	if !sel.anyTag {
		folded := foldTag(*scope.SaltTag)
		sel.tagText = &folded
	}
	return sel, nil
}

// removeScanned drops what is meant among all records, step by step.
func (m *Master) removeScanned(ctx context.Context, done *Removal, sel *selection, meant func(*record) bool) error {
	for at, more := uint32(0), true; more; at += m.opts.steps.remove {
		m.betweenSteps()
		if err := ctx.Err(); err != nil {
			return err
		}
		more = m.removeStepAt(done, sel, meant, at)
	}
	return nil
}

func (m *Master) removeStepAt(done *Removal, sel *selection, meant func(*record) bool, at uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := min(at+m.opts.steps.remove, m.fresh)
	doomed := map[uint32]struct{}{}
	for rec := at; rec < end; rec++ {
		if m.passedOverLocked(rec) {
			continue
		}
		if r := m.seg.peekRecord(rec); meant(&r) {
			doomed[rec] = struct{}{}
		}
	}
	m.removeSetLocked(done, sel, doomed)
	return end < m.fresh
}

// passedOverLocked tells whether a record has no chunk, or one that was reset.
func (m *Master) passedOverLocked(rec uint32) bool {
	state := m.live[rec].state
	return state == Gone || state == Evicting || m.staleLocked(rec)
}

// removeHashes drops the chunks of the scope's hashes in every group.
func (m *Master) removeHashes(ctx context.Context, done *Removal, sel *selection) error {
	for step := range slices.Chunk(sel.scope.Hashes, int(m.opts.steps.remove)) {
		m.betweenSteps()
		if err := ctx.Err(); err != nil {
			return err
		}
		m.removeHashStep(done, sel, step)
	}
	return nil
}

func (m *Master) removeHashStep(done *Removal, sel *selection, hashes []kv.Hash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	doomed := map[uint32]struct{}{}
	for i := range hashes {
		for group := range sel.groups {
			if rec, ok := m.findLocked(store.NamespaceID(sel.namespace), uint32(group), &hashes[i]); ok {
				if r := m.seg.peekRecord(rec); sel.has(&r) {
					doomed[rec] = struct{}{}
				}
			}
		}
	}
	m.removeSetLocked(done, sel, doomed)
}

// removeSetLocked drops records.
func (m *Master) removeSetLocked(done *Removal, sel *selection, doomed map[uint32]struct{}) {
	if len(doomed) == 0 {
		return
	}
	if !sel.anyTag || sel.scope.Chain {
		// The disk may have it under another tag, of whoever stored it first, or may
		// not have known yet that it has it.
		done.OnDisk += m.forgetOnDisk(maps.Keys(doomed))
		m.forgetFaraway(done, maps.Keys(doomed))
	}
	for rec := range doomed {
		l := &m.live[rec]
		if l.state == Creating {
			m.dropCreatingLocked(rec)
		}
		if !l.state.Resident() {
			continue
		}
		r := m.seg.peekRecord(rec)
		done.Chunks++
		done.Bytes += uint64(l.shards) * uint64(m.groupOf(&r).slotBytes)
		m.dropLocked(rec, RemovedByCommand)
	}
}

// Evict drops what the policy would drop next, softly pinned chunks last.
func (m *Master) Evict(limit EvictLimit) (Removal, error) {
	if limit.Chunks < 0 || limit.Chunks == 0 && limit.Bytes == 0 {
		return Removal{}, fmt.Errorf("%w: evict how many chunks, or how many bytes", ErrOption)
	}
	var done Removal
	for m.evictSome(&done, limit) {
		m.betweenSteps()
	}
	return done, nil
}

func (m *Master) evictSome(done *Removal, limit EvictLimit) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timeLocked()
	for range m.opts.steps.evict {
		if limit.Chunks > 0 && done.Chunks >= limit.Chunks || limit.Bytes > 0 && done.Bytes >= limit.Bytes {
			return false
		}
		before := m.alloc.used
		if _, ok := m.evictLocked(RemovedByCommand, anyKind); !ok {
			done.Busy = m.residentLocked()
			return false
		}
		done.Chunks++
		done.Bytes += before - m.alloc.used
	}
	return true
}

// residentLocked counts the chunks of which shards are in memory.
func (m *Master) residentLocked() (n int) {
	for i := range m.books.namespaces {
		n += m.books.namespaces[i].chunks
	}
	return n
}
