package prefixindex

import "fmt"

// check walks through all that the index has and returns what does not fit together.
func (x *Index) check() error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	bytes := int64(0)
	for _, s := range x.spaces {
		s.mu.Lock()
		err := s.check()
		bytes += s.bytes()
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("%v: %w", s.key, err)
		}
	}
	if counted := x.budget.bytes.Load(); counted != bytes {
		return fmt.Errorf("%d bytes in use, %d counted", bytes, counted)
	}
	return nil
}

// bytes is what a space takes.
func (s *space) bytes() int64 {
	n := aheadBytes + slotBytes*len(s.slots) + laneBytes*len(s.lanes) + recordsBytes*len(s.records.pages) + pageBytes*len(s.lists.pages)
	for i := range s.tables {
		n += s.tables[i].bytes()
	}
	return int64(n)
}

// bytes is what a table takes.
func (t *table) bytes() int {
	n := placeBytes * len(t.dir)
	for _, seg := range t.segments() {
		n += segmentBytes + unitBytes*int(seg.count)
	}
	for _, list := range t.beyond {
		n += beyondBytes + cellBytes*cap(list)
	}
	return n
}

func (s *space) check() error {
	if err := s.records.check(); err != nil {
		return err
	}
	used, cells := 0, 0
	units := map[uint32]bool{} // of lists in use
	byDigest := map[digest][]link{}
	for n := range len(s.records.pages) * pageRecords {
		l := link(n + 1)
		if *s.records.holders(l) == 0 {
			if s.records.hash(l) != 0 || s.records.placed(l) || *s.records.info(l) != 0 {
				return fmt.Errorf("record %d is not in use, and is not empty", l)
			}
			continue
		}
		used++
		if err := s.checkHolders(*s.records.holders(l), units); err != nil {
			return fmt.Errorf("record %d: %w", l, err)
		}
		if !s.tables[byHash].finds(s.keyOf(s.records.hash(l)), l) {
			return fmt.Errorf("record %d is not found by its hash", l)
		}
		if s.records.placed(l) {
			byDigest[s.records.digest(l)] = append(byDigest[s.records.digest(l)], l)
		}
		hasCell, err := s.checkPlace(l)
		if err != nil {
			return err
		}
		if hasCell {
			cells++
		}
	}
	if used != s.records.used {
		return fmt.Errorf("%d records in use, %d counted", used, s.records.used)
	}
	for d, twins := range byDigest {
		for _, l := range twins {
			if len(twins) > 1 && *s.records.info(l)&isTwin == 0 {
				return fmt.Errorf("record %d does not tell of its twin", l)
			}
			if found := s.find(d, l-1, s.seeChain(d)); found == 0 {
				return fmt.Errorf("record %d is not found", l)
			}
		}
	}
	for which, want := range []int{used, cells} {
		if err := s.tables[which].check(want, s); err != nil {
			return fmt.Errorf("table %d: %w", which, err)
		}
	}
	if err := s.checkSlots(); err != nil {
		return err
	}
	return s.lists.check(units)
}

// checkPlace looks whether a record that is in use is found by its digest: by a cell, or
// by the one before.
func (s *space) checkPlace(l link) (hasCell bool, err error) {
	hasCell = s.tables[byChain].finds(s.records.digest(l).key(), l)
	is := *s.records.info(l)
	if at := int(is & sizeOf); s.records.placed(l) != (at != 0) || at > len(s.sizes) {
		return false, fmt.Errorf("record %d has size %d", l, at)
	}
	if want := s.records.placed(l) && is&follows == 0; hasCell != want {
		return false, fmt.Errorf("record %d, %x: has a cell: %v", l, is, hasCell)
	}
	if is&follows != 0 && (l == 1 || !s.records.placed(l-1) || (is|*s.records.info(l - 1))&isTwin != 0) {
		return false, fmt.Errorf("record %d follows none, or one of several, or is one", l)
	}
	return hasCell, nil
}

func (r *records) check() error {
	listed := map[uint32]bool{}
	for list, first := range r.lists {
		if (first != 0) != (r.some>>list&1 != 0) {
			return fmt.Errorf("list %d of pages", list)
		}
		for n, before := first, uint32(0); n != 0; n, before = r.pages[n-1].behind, n {
			if listed[n] || r.pages[n-1].before != before || int(r.pages[n-1].left)>>list != 1 {
				return fmt.Errorf("page %d in list %d", n, list)
			}
			listed[n] = true
		}
	}
	for n, p := range r.pages {
		left := 0
		for i := range pageRecords {
			free := p.free[i/64]>>(i%64)&1 != 0
			if free != (p.holders[i] == 0) {
				return fmt.Errorf("record %d of page %d: is free: %v", i, n, free)
			}
			if free {
				left++
			}
		}
		if filling := r.filling == uint32(n+1); left != int(p.left) || !filling && listed[uint32(n+1)] != (left > 0) {
			return fmt.Errorf("page %d has %d, counts %d", n, left, p.left)
		}
	}
	return nil
}

func (s *space) checkSlots() error {
	dense := make([][tiers]int, len(s.slots))
	for l := range s.lanes {
		for tier := range Tier(tiers) {
			if ln := &s.lanes[l]; ln.kind != window && ln.told.has(tier) && !ln.retired {
				dense[ln.slot][tier]++
			}
		}
	}
	for i := range s.slots {
		if s.slots[i].dense != dense[i] {
			return fmt.Errorf("slot %d has lanes %v, counts %v", i, dense[i], s.slots[i].dense)
		}
	}
	return nil
}

func (s *space) checkHolders(of holders, units map[uint32]bool) error {
	var one [1]holding
	held := s.view(of, &one)
	if of&isList != 0 {
		if len(held) < 2 {
			return fmt.Errorf("a list of %d", len(held))
		}
		at := uint32(of &^ isList)
		for i := range uint32(1) << classOf(len(held)) {
			if units[at+i] {
				return fmt.Errorf("unit %d is of two lists", at+i)
			}
			units[at+i] = true
		}
	}
	for i, h := range held {
		if h.count() == 0 || h.tier() >= tiers || i > 0 && held[i-1]&whose >= h&whose {
			return fmt.Errorf("holdings %x", held)
		}
		if !s.lanes[h.lane()].retired && !s.lanes[h.lane()].told.has(h.tier()) {
			return fmt.Errorf("holdings %x of a lane that was never told of", held)
		}
	}
	return nil
}

func (a *lists) check(units map[uint32]bool) error {
	for class, f := range a.free {
		for ; f != 0; f = uint32(a.words(f-1, class)[0]) {
			for i := range uint32(1) << class {
				if units[f-1+i] {
					return fmt.Errorf("unit %d is free and in use", f-1+i)
				}
				units[f-1+i] = true
			}
		}
	}
	if len(units) != int(a.end) {
		return fmt.Errorf("%d units of %d are neither free nor in use", int(a.end)-len(units), a.end)
	}
	return nil
}

func (t *table) finds(k key, l link) bool {
	p := t.probe(k)
	for found := p.next(); found != 0; found = p.next() {
		if found == l {
			return true
		}
	}
	return false
}

// segments are those of a table, each once.
func (t *table) segments() (all []*segment) {
	for i, seg := range t.dir {
		if i == 0 || t.dir[i-1] != seg {
			all = append(all, seg)
		}
	}
	return all
}

func (t *table) check(want int, s *space) error {
	total := 0
	for n, seg := range t.segments() {
		used := 0
		passedBy := make([]uint64, seg.buckets())
		for at := range seg.buckets() {
			b := seg.bucket(at)
			for i, c := range b.cells {
				tag := b.tags >> (8 * i) & 0xff
				if c == 0 {
					if tag != 0 {
						return fmt.Errorf("segment %d, bucket %d: an empty cell has tag %x", n, at, tag)
					}
					continue
				}
				used++
				k := c.key()
				if t.segment(k) != seg || tag != k.tag()&0xff {
					return fmt.Errorf("segment %d: cell %x in bucket %d, tag %x", n, c, at, tag)
				}
				if *s.records.holders(link(c)) == 0 {
					return fmt.Errorf("segment %d: cell %x leads nowhere", n, c)
				}
				for by := seg.home(k); by != at; by = seg.after(by) {
					passedBy[by]++
				}
			}
		}
		for at, want := range passedBy {
			if has := seg.bucket(uint32(at)).tags / passed; has != want && has != maxPassed {
				return fmt.Errorf("segment %d: %d passed bucket %d, which counts %d", n, want, at, has)
			}
		}
		for _, c := range t.beyondOf(seg) {
			if t.segment(c.key()) != seg || *s.records.holders(link(c)) == 0 || used < segmentCells {
				return fmt.Errorf("segment %d: cell %x beyond it", n, c)
			}
		}
		used += len(t.beyondOf(seg))
		if used != int(seg.used) {
			return fmt.Errorf("segment %d has %d, counts %d", n, used, seg.used)
		}
		for _, u := range seg.units[seg.count:] {
			if u != nil {
				return fmt.Errorf("segment %d has a unit behind its last", n)
			}
		}
		total += used
	}
	if total != want || len(t.dir) != 1<<t.depth {
		return fmt.Errorf("%d cells in use of %d, directory of %d", total, want, len(t.dir))
	}
	return nil
}
