package prefixindex

// Clearing a source is done by retiring its lanes: nobody believes their holdings any
// more, and they are removed little by little. A lane is given out again when none of
// its holdings is left.

// sweep is a pass over all records that removes the holdings of retired lanes.
type sweep struct {
	// lanes are those that the pass is for; those retired later wait for the next one.
	lanes []uint32
	// pages are still to be swept: from the last to the first, for what follows a record goes
	// before it.
	pages int
}

// Sweep goes on removing what was cleared, for at most some pages of records in each
// tenant's model. It returns whether there is more to do. Apply does the same in
// passing.
func (x *Index) Sweep(pages int) (more bool) {
	for _, s := range x.allSpaces() {
		s.mu.Lock()
		more = s.sweepLocked(pages) || more
		s.mu.Unlock()
	}
	return more
}

func (s *space) sweepLocked(pages int) (more bool) {
	if len(s.sweep.lanes) == 0 {
		if len(s.retired) == 0 {
			return false
		}
		s.sweep.lanes, s.retired, s.sweep.pages = s.retired, nil, len(s.records.pages)
	}
	for ; pages > 0 && s.sweep.pages > 0; pages-- {
		s.sweep.pages--
		s.sweepPage(s.sweep.pages)
	}
	if s.sweep.pages == 0 {
		s.free = append(s.free, s.sweep.lanes...)
		s.sweep.lanes = nil
	}
	return len(s.sweep.lanes)+len(s.retired) > 0
}

func (s *space) sweepPage(n int) {
	p := s.records.pages[n]
	for i := pageRecords - 1; i >= 0; i-- {
		h := &p.holders[i]
		if *h == 0 {
			continue // not in use: who is in use is held
		}
		s.keep(h, func(h holding) bool { return !s.lanes[h.lane()].retired })
		if *h == 0 {
			s.forget(link(n*pageRecords+i) + 1) //nolint:gosec // a record's number
		}
	}
}
