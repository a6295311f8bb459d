package embedded

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store"
)

// removeStep is how many records a removal looks at before it lets others have
// the store.
const removeStep = 32 << 10

// evictStep is the same for chunks that are evicted by command.
const evictStep = 1024

// Remove drops the chunks of the scope, pinned or not. Puts that are open end
// void; what is being read is freed when the reader is done. Chunks that are
// stored meanwhile may stay.
func (m *Master) Remove(scope Scope) (Removal, error) {
	sel, err := m.selection(&scope)
	if err != nil {
		return Removal{}, err
	}
	var done Removal
	m.removeBelow(&done, &scope)
	switch {
	case sel.nothing:
	case scope.Chain:
		m.removeRecords(&done, sel, m.chainRecords(sel))
	case len(scope.Hashes) > 0:
		m.removeRecords(&done, sel, m.hashRecords(sel))
	default:
		m.removeScanned(&done, sel)
	}
	return done, m.settleTier()
}

// selection is a scope in the store's own numbers.
type selection struct {
	scope        *Scope
	anyNamespace bool
	namespace    uint16
	anyTag       bool
	tag          uint16
	nothing      bool // the tag is unknown
}

func (s *selection) has(r *record) bool {
	return (s.anyNamespace || r.namespace == s.namespace) && (s.anyTag || r.saltTag == s.tag)
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
	sel := &selection{scope: scope, anyNamespace: scope.Namespace == nil, anyTag: scope.SaltTag == nil}
	if !sel.anyNamespace {
		if _, err := m.namespaceLocked(*scope.Namespace); err != nil {
			return nil, err
		}
		sel.namespace = uint16(*scope.Namespace)
	}
	if !sel.anyTag && *scope.SaltTag != "" {
		tag, known := m.tagNumber[foldTag(*scope.SaltTag)]
		sel.tag, sel.nothing = tag, !known
	}
	return sel, nil
}

// named is a record and what it held when it was looked at: the number may be
// another chunk's by the time it is dropped.
type named struct {
	rec uint32
	key uint64
}

// removeScanned drops what the selection has, step by step.
func (m *Master) removeScanned(done *Removal, sel *selection) {
	for at, more := uint32(0), true; more; at += removeStep {
		more = m.removeStepAt(done, sel, at)
	}
}

func (m *Master) removeStepAt(done *Removal, sel *selection, at uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := min(at+removeStep, m.fresh)
	doomed := map[uint32]struct{}{}
	for rec := at; rec < end; rec++ {
		if m.live[rec].state == Gone {
			continue
		}
		if r := m.seg.peekRecord(rec); sel.has(&r) {
			doomed[rec] = struct{}{}
		}
	}
	m.removeSetLocked(done, doomed)
	return end < m.fresh
}

// removeRecords drops those of the records that still are what they were.
func (m *Master) removeRecords(done *Removal, sel *selection, records []named) {
	for step := range slices.Chunk(records, removeStep) {
		m.removeNamed(done, sel, step)
	}
}

func (m *Master) removeNamed(done *Removal, sel *selection, step []named) {
	m.mu.Lock()
	defer m.mu.Unlock()
	doomed := map[uint32]struct{}{}
	for _, n := range step {
		if m.live[n.rec].state == Gone || m.keyOfLocked(n.rec) != n.key {
			continue
		}
		if r := m.seg.peekRecord(n.rec); sel.has(&r) {
			doomed[n.rec] = struct{}{}
		}
	}
	m.removeSetLocked(done, doomed)
}

// removeSetLocked drops records.
func (m *Master) removeSetLocked(done *Removal, doomed map[uint32]struct{}) {
	if len(doomed) == 0 {
		return
	}
	m.forgetOnDisk(maps.Keys(doomed))
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

// hashRecords finds the chunks of the scope's hashes in every group.
func (m *Master) hashRecords(sel *selection) (found []named) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	ns := m.namespaces[sel.namespace]
	for i := range sel.scope.Hashes {
		for group := range ns.groups {
			if rec, ok := m.findLocked(store.NamespaceID(sel.namespace), uint32(group), &sel.scope.Hashes[i]); ok {
				found = append(found, named{rec, m.keyOfLocked(rec)})
			}
		}
	}
	return found
}

// chainRecords finds the chunks of the scope's hashes and all behind them in
// their chains. A chunk names its predecessor, so that all of the namespace have
// to be looked at.
func (m *Master) chainRecords(sel *selection) []named {
	children := map[uint64][]named{}
	for at, more := uint32(0), true; more; at += removeStep {
		more = m.childrenAt(children, sel, at)
	}
	reached := m.hashRecords(sel)
	seen := map[uint32]struct{}{}
	for _, n := range reached {
		seen[n.rec] = struct{}{}
	}
	for i := 0; i < len(reached); i++ {
		for _, child := range children[reached[i].key] {
			if _, again := seen[child.rec]; !again {
				seen[child.rec] = struct{}{}
				reached = append(reached, child)
			}
		}
	}
	return reached
}

func (m *Master) childrenAt(children map[uint64][]named, sel *selection, at uint32) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	end := min(at+removeStep, m.fresh)
	for rec := at; rec < end; rec++ {
		if m.live[rec].state == Gone {
			continue
		}
		if r := m.seg.peekRecord(rec); r.parent != 0 && r.namespace == sel.namespace {
			children[r.parent] = append(children[r.parent], named{rec, m.keyOfLocked(rec)})
		}
	}
	return end < m.fresh
}

// Evict drops what the policy would drop next, softly pinned chunks last.
func (m *Master) Evict(limit EvictLimit) (Removal, error) {
	if limit.Chunks < 0 || limit.Chunks == 0 && limit.Bytes == 0 {
		return Removal{}, fmt.Errorf("%w: evict how many chunks, or how many bytes", ErrOption)
	}
	var done Removal
	for m.evictSome(&done, limit) {
	}
	return done, nil
}

func (m *Master) evictSome(done *Removal, limit EvictLimit) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timeLocked()
	for range evictStep {
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
