package prefixindex

// Records of one key can't be parted: a block that many engines call by hashes of their
// own is in as many records with one digest, and where engines hash each block alone, one
// hash is of many records. Splitting a segment for them would double the directory until
// keys have no bits left. Cells of a segment that is full of them stand beyond it, in a
// list of the table.
//
// INVARIANT: a segment that has cells beyond has no room.

const (
	// maxBeyond bounds the cells that a segment has beyond: who looks for one of their keys
	// reads them all. With the segment's own it is how many records of one key there can
	// be.
	maxBeyond = 8192
	// beyondStep is how many there is room for at first, and how many more each time.
	beyondStep  = 128
	beyondBytes = 24 // of a list, without its cells
	cellBytes   = 8
	// leastParted is how many keys a split has to part from the others. Of keys that are
	// no one's twins a segment parts hundreds.
	leastParted = unitCells / 2
)

// beyondOf returns a segment's cells beyond.
func (t *table) beyondOf(s *segment) []cell {
	if s.beyond == 0 {
		return nil
	}
	return t.beyond[s.beyond-1]
}

// crowded tells whether it is of no use to split a segment. Of one without cells beyond only who
// divides its cells knows.
func (t *table) crowded(s *segment) bool {
	switch {
	case s.depth == maxDepth:
		return true
	case s.beyond == 0:
		return false
	}
	var room cellRoom
	second := 0
	shift := 2*keyBits - s.depth - 1
	for _, c := range s.gather(room[:]) {
		second += int(c >> shift & 1)
	}
	for _, c := range t.beyondOf(s) {
		second += int(c >> shift & 1)
	}
	return !parts(int(s.used)-second, second)
}

// parts tells whether a split into so many cells is of use.
func parts(first, second int) bool {
	// Of two crowds only one can be beyond its half: see shareBeyond.
	fewer := min(first, second)
	return fewer >= leastParted && fewer <= segmentCells
}

// putBeyond adds a cell, false when there is no memory or there are too many.
func (t *table) putBeyond(s *segment, c cell, budget *budget) bool {
	list := t.beyondOf(s)
	if len(list) == maxBeyond {
		return false
	}
	if len(list) == cap(list) {
		bytes := int64(beyondStep * cellBytes)
		if s.beyond == 0 {
			bytes += beyondBytes
		}
		if !budget.take(bytes) {
			return false
		}
		list = append(make([]cell, 0, len(list)+beyondStep), list...)
	}
	if s.beyond == 0 {
		t.beyond = append(t.beyond, nil)
		s.beyond = uint32(len(t.beyond)) //nolint:gosec // at most one a segment
	}
	t.beyond[s.beyond-1] = append(list, c)
	return true
}

// removeBeyond takes a cell out, false when it is not among those beyond.
func (t *table) removeBeyond(s *segment, c cell) bool {
	list := t.beyondOf(s)
	for i := range list {
		if list[i] == c {
			last := len(list) - 1
			list[i] = list[last]
			t.beyond[s.beyond-1] = list[:last]
			return true
		}
	}
	return false
}

// fetchBeyond puts one of the cells beyond where there is room now.
func (t *table) fetchBeyond(s *segment) {
	if list := t.beyondOf(s); len(list) > 0 {
		last := len(list) - 1
		s.put(list[last])
		t.beyond[s.beyond-1] = list[:last]
	}
}

// shareBeyond leaves in the halves of a segment's cells, with those that were beyond, what
// has room in the segments for them. The rest is beyond the one of them that has it.
func (t *table) shareBeyond(s, other *segment, first, second []cell) (inFirst, inSecond []cell) {
	if s.beyond == 0 {
		return first, second
	}
	list := &t.beyond[s.beyond-1]
	*list = (*list)[:0]
	switch {
	case len(first) > segmentCells:
		*list = append(*list, first[segmentCells:]...)
		first = first[:segmentCells]
	case len(second) > segmentCells:
		*list = append(*list, second[segmentCells:]...)
		second = second[:segmentCells]
		other.beyond, s.beyond = s.beyond, 0
	}
	return first, second
}

// nextBeyond returns the next record whose key it is of those beyond, or 0.
func (p *probe) nextBeyond() link {
	list := p.table.beyondOf(p.segment)
	for int(p.past) < len(list) {
		c := list[p.past]
		p.past++
		if c.key() == p.key {
			return link(c) //nolint:gosec // the lower half
		}
	}
	return 0
}
