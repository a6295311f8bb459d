package prefixindex

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// mostBehind bounds the events among which the one is looked for that goes on behind
// another one: removals, and other groups' of the same request.
const mostBehind = 256

// fromBeginning tells whether an event tells of a prompt's beginning: only such ones
// can be reports of reuse.
func fromBeginning(e *kvevents.BlockStored) bool {
	return e.Parent == nil && len(e.TokenIDs) > 0 && len(e.Hashes) > 0
}

// goesOn tells whether one of the next events tells of what comes behind an event's
// blocks in its group.
func goesOn(e *kvevents.BlockStored, rest []kvevents.Event) bool {
	last := e.Hashes[len(e.Hashes)-1]
	for _, event := range rest[:min(len(rest), mostBehind)] {
		behind, ok := event.(*kvevents.BlockStored)
		if ok && behind.Parent != nil && *behind.Parent == last && groupOf(behind.Group) == groupOf(e.Group) {
			return true
		}
	}
	return false
}

// showsReuse tells whether an event is how an engine tells of a request that reuses
// blocks: it has all of them from the prompt's beginning, all of them are held, and the
// same step goes on behind them. Copies that a request makes for itself come in one
// event.
func (src *Source) showsReuse(e *kvevents.BlockStored, tier Tier, rest []kvevents.Event) bool {
	if !fromBeginning(e) || !goesOn(e, rest) {
		return false
	}
	l, ok := src.lanes[groupOf(e.Group)]
	if !ok {
		return false
	}
	s := src.space
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, hash := range e.Hashes {
		if !s.holds(hash, holdingOf(l, tier)) {
			return false
		}
	}
	return true
}

// reusesFound notes that the engine reports reuse. What was taken for copies until now
// is none for certain; and windows, whose reports name also blocks that they have not,
// are begun anew.
func (src *Source) reusesFound() {
	src.origin.ReusesReported, src.miscounted = true, true
	s := src.space
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := &s.slots[src.slot]
	sl.age++
	for group, l := range src.lanes {
		was := s.lanes[l]
		if was.kind != window {
			continue
		}
		s.lanes[l].retired = true
		s.retired = append(s.retired, l)
		sl.windows = slices.DeleteFunc(sl.windows, func(other uint32) bool { return other == l })
		delete(src.lanes, group)
		anew, ok := src.laneOf(group, window, was.windowTokens)
		if !ok { // without it the others would be a hit
			src.clearLocked()
			return
		}
		s.lanes[anew].told = was.told
	}
}

// computed tells whether a window's event from a prompt's beginning tells of blocks that
// were computed, where the engine reports reuse: of a report it can't be known which of
// the blocks the window has. A full-attention group has just told of new blocks up to the
// same one, then, and nothing goes on behind. Where windows come first, too little is
// known of them.
func (src *Source) computed(e *kvevents.BlockStored, rest []kvevents.Event) bool {
	return src.fresh && src.freshLast == e.Hashes[len(e.Hashes)-1] && !goesOn(e, rest)
}
