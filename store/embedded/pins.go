package embedded

import (
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// pinFlags are a pin's marks in the record. While a chunk is pinned, its
// deadline is the pin's; afterwards it has the namespace's time to live.
var pinFlags = [...]recordFlags{PinNone: 0, PinSoft: flagSoftPin, PinHard: flagHardPin}

func checkTTL(ttl time.Duration) error {
	if ttl < 0 || ttl > maxTTL {
		return fmt.Errorf("%w: time to live of %v; want 0, for ever, to %v", ErrOption, ttl, maxTTL)
	}
	return nil
}

// pinBudgetLocked is how much chunks that are pinned hard may take together.
func (m *Master) pinBudgetLocked() uint64 {
	return uint64(float64(uint64(m.seg.prepared())*m.seg.SlabBytes) * m.opts.PinShare)
}

// Pin pins those chunks that are in memory whole, until ttl has passed (0: for
// ever) or they are unpinned. A pin takes the place of an earlier one.
// ErrPinBudget: nothing was pinned.
func (m *Master) Pin(ns store.NamespaceID, keys []store.ChunkKey, kind PinKind, ttl time.Duration) (PinResult, error) {
	if kind != PinSoft && kind != PinHard {
		return PinResult{}, fmt.Errorf("%w: pin kind %d; want soft or hard", ErrOption, kind)
	}
	if err := checkTTL(ttl); err != nil {
		return PinResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found, result, err := m.pinnableLocked(ns, keys)
	if err != nil {
		return PinResult{}, err
	}
	if kind == PinHard {
		if err := m.checkPinsLocked(found); err != nil {
			m.stats.PinsRefused++
			return PinResult{}, err
		}
	}
	until := deadline(m.clock.elapsed, ttl)
	for _, rec := range found {
		r := m.seg.peekRecord(rec)
		m.setPinLocked(rec, &r, kind, until)
	}
	return result, nil
}

// Unpin leaves chunks to the policy again.
func (m *Master) Unpin(ns store.NamespaceID, keys []store.ChunkKey) (PinResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, _, err := m.pinnableLocked(ns, keys)
	if err != nil {
		return PinResult{}, err
	}
	result := PinResult{Absent: len(keys) - len(found)}
	for _, rec := range found {
		r := m.seg.peekRecord(rec)
		if r.flags&(flagSoftPin|flagHardPin) == 0 {
			continue
		}
		result.Pinned++
		result.Bytes += m.groupOf(&r).wholeBytes()
		m.setPinLocked(rec, &r, PinNone, deadline(m.clock.elapsed, m.defaultTTLLocked(&r)))
	}
	return result, nil
}

// pinnableLocked finds the chunks of a call, each once.
func (m *Master) pinnableLocked(ns store.NamespaceID, keys []store.ChunkKey) ([]uint32, PinResult, error) {
	n, err := m.namespaceLocked(ns)
	if err != nil {
		return nil, PinResult{}, err
	}
	m.timeLocked()
	var result PinResult
	found := make([]uint32, 0, len(keys))
	seen := make(map[uint32]struct{}, len(keys))
	for i := range keys {
		rec, ok := uint32(0), false
		if int(keys[i].Group) < len(n.groups) {
			rec, ok = m.findLocked(ns, keys[i].Group, &keys[i].Hash)
		}
		if !ok || !m.live[rec].state.Whole() || m.expiredLocked(rec) {
			result.Absent++
			continue
		}
		if _, twice := seen[rec]; twice {
			continue
		}
		seen[rec] = struct{}{}
		found = append(found, rec)
		result.Pinned++
		result.Bytes += n.groups[keys[i].Group].wholeBytes()
	}
	return found, result, nil
}

// checkPinsLocked refuses chunks that would take hard pins over their share.
func (m *Master) checkPinsLocked(found []uint32) error {
	more := uint64(0)
	for _, rec := range found {
		if r := m.seg.peekRecord(rec); r.flags&flagHardPin == 0 {
			more += m.groupOf(&r).wholeBytes()
		}
	}
	if budget := m.pinBudgetLocked(); m.pinned+more > budget {
		return fmt.Errorf("%w: %d bytes more, %d of %d are pinned; unpin chunks, pin softly, or make the store larger", ErrPinBudget, more, m.pinned, budget)
	}
	return nil
}

// setPinLocked changes a chunk's pin and its deadline.
//
// REQUIRES: the chunk is resident and r is its record; a hard pin fits.
func (m *Master) setPinLocked(rec uint32, r *record, kind PinKind, until uint32) {
	flags := r.flags&^(flagSoftPin|flagHardPin) | pinFlags[kind]
	changed := flags != r.flags
	if changed {
		m.leavePolicyLocked(rec)
		m.leaveOrderLocked(rec, r)
		m.countPinLocked(r, -1)
	}
	m.setLifeLocked(rec, flags, until)
	if changed {
		r.flags, r.expires = flags, until
		m.countPinLocked(r, 1)
		m.enterPolicyLocked(rec, r)
		m.enterOrderLocked(rec, r)
	}
}

// countPinLocked keeps the books of a chunk that is pinned hard.
func (m *Master) countPinLocked(r *record, by int) {
	if r.flags&flagHardPin == 0 {
		return
	}
	bytes := m.groupOf(r).wholeBytes()
	if by > 0 {
		m.pinned += bytes
		m.books.pin(ownerOf(r), bytes)
		return
	}
	m.pinned -= bytes
	m.books.unpin(ownerOf(r), bytes)
}
