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
	n := spaceBytes + slotBytes*len(s.slots) + laneBytes*len(s.lanes) + pageRecords*recordBytes*len(s.records.pages) + pageBytes*len(s.lists.pages)
	for i := range s.tables {
		t := &s.tables[i]
		n += segmentBytes*(len(t.segments)-1) + placeBytes*(len(t.dir)-1)
	}
	return int64(n)
}

func (s *space) check() error {
	free := map[link]bool{}
	for l := s.records.free; l != 0; l = link(s.records.at(l).meta) {
		if free[l] {
			return fmt.Errorf("record %d is free twice", l)
		}
		free[l] = true
	}
	used, placed := 0, 0
	units := map[uint32]bool{} // of lists in use
	chains := map[digest]int{}
	for n := range len(s.records.pages) * pageRecords {
		l := link(n + 1)
		rec := s.records.at(l)
		if free[l] {
			if rec.holders != 0 {
				return fmt.Errorf("record %d is free and held", l)
			}
			continue
		}
		used++
		if rec.holders == 0 {
			return fmt.Errorf("record %d is held by nobody", l)
		}
		if err := s.checkHolders(rec, units); err != nil {
			return fmt.Errorf("record %d: %w", l, err)
		}
		if !s.tables[byHash].finds(rec.keyOf(byHash), l) {
			return fmt.Errorf("record %d is not found by its hash", l)
		}
		if rec.placed() {
			placed++
			chains[rec.chain]++
			if !s.tables[byChain].finds(rec.keyOf(byChain), l) {
				return fmt.Errorf("record %d is not found by its digest", l)
			}
		}
	}
	for n := range len(s.records.pages) * pageRecords {
		if rec := s.records.at(link(n + 1)); rec.holders != 0 && rec.placed() && chains[rec.chain] > 1 && rec.meta&metaTwin == 0 {
			return fmt.Errorf("record %d does not tell of its twin", n+1)
		}
	}
	if used != s.records.used {
		return fmt.Errorf("%d records in use, %d counted", used, s.records.used)
	}
	for which, want := range []int{used, placed} {
		if err := s.tables[which].check(want); err != nil {
			return fmt.Errorf("table %d: %w", which, err)
		}
	}
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
	return s.lists.check(units)
}

func (s *space) checkHolders(rec *record, units map[uint32]bool) error {
	var one [1]holding
	held := s.view(rec.holders, &one)
	if rec.holders&isList != 0 {
		if len(held) < 2 {
			return fmt.Errorf("a list of %d", len(held))
		}
		at := uint32(rec.holders &^ isList)
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

func (t *table) check(want int) error {
	total := 0
	for i := range t.segments {
		seg := &t.segments[i]
		used := 0
		for _, c := range seg.cells {
			if c != 0 {
				used++
				if t.segment(key(c>>keyBits)) != seg {
					return fmt.Errorf("segment %d has a key of another", i)
				}
			}
		}
		if used != seg.used {
			return fmt.Errorf("segment %d has %d, counts %d", i, used, seg.used)
		}
		total += used
	}
	if total != want || len(t.dir) != 1<<t.depth {
		return fmt.Errorf("%d cells in use of %d, directory of %d", total, want, len(t.dir))
	}
	return nil
}
