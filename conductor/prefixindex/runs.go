package prefixindex

// What an event tells of stands in records that follow each other, as its blocks do: a
// run. Only the first of a run needs a cell in the table of digests; who has found a
// record looks at the next one. All that changes this is here.
//
// INVARIANT: a placed record has a cell, or it follows: then the record before it is
// placed, is no twin, and has the digest of what comes before its block. No other record
// of the space has that digest, so that who goes along a prompt passes it.

// find returns a record with a digest, 0 when there is none, given one with the digest
// before; if there is none of that, 0.
func (s *space) find(chain digest, prev link, seen *sight) link {
	if l := s.records.follower(prev); l != 0 && s.records.digest(l) == chain {
		return l
	}
	l, way := s.tables[byChain].from(seen)
	for ; l != 0; l = way.next() {
		if s.records.digest(l) == chain {
			return l
		}
	}
	return 0
}

// place says what a record's block is and what comes before it, false when there is no
// memory. other is a record with the same digest, as find returns it.
func (s *space) place(l link, before, chain digest, size info, other link) bool {
	flags := size
	switch {
	case other != 0:
		// It is no longer alone with its digest: neither it nor what comes behind can be
		// passed by.
		if !s.giveCell(other) || !s.giveCell(s.records.follower(other)) || !s.insertChain(chain, l) {
			return false
		}
		*s.records.info(other) |= isTwin
		flags |= isTwin
	case s.comesBehind(l, before):
		flags |= follows
	case !s.insertChain(chain, l):
		return false
	}
	p, i := s.records.of(l)
	p.digests[i], p.info[i] = chain, flags
	return true
}

func (s *space) insertChain(chain digest, l link) bool {
	return s.tables[byChain].insert(chain.key(), l, &s.budget)
}

// comesBehind tells whether a record is found by who has found the one before it.
func (s *space) comesBehind(l link, before digest) bool {
	return l > 1 && before != 0 && s.records.digest(l-1) == before && *s.records.info(l - 1)&isTwin == 0
}

// giveCell gives a record a cell if it has none, false when there is no memory.
func (s *space) giveCell(l link) bool {
	if l == 0 || *s.records.info(l)&follows == 0 {
		return true
	}
	if !s.insertChain(s.records.digest(l), l) {
		return false
	}
	*s.records.info(l) &^= follows
	return true
}

// forget removes a record that nobody holds.
func (s *space) forget(l link) {
	s.tables[byHash].remove(s.keyOf(s.records.hash(l)), l)
	if s.records.placed(l) && *s.records.info(l)&follows == 0 {
		s.tables[byChain].remove(s.records.digest(l).key(), l)
	}
	next := s.records.follower(l)
	s.records.release(l)
	// Without memory for a cell what comes behind is known by its hash only.
	for next != 0 && !s.giveCell(next) {
		behind := s.records.follower(next)
		s.unplace(next)
		next = behind
	}
}

// unplace forgets what comes before a block, and marks its holders: there may be more than
// is found.
//
// REQUIRES: the record follows, and what it followed is gone.
func (s *space) unplace(l link) {
	p, i := s.records.of(l)
	p.digests[i], p.info[i] = 0, 0
	var one [1]holding
	for _, h := range s.view(p.holders[i], &one) {
		if ln := &s.lanes[h.lane()]; !ln.retired {
			s.slots[ln.slot].dropped++
		}
	}
}

// sizeIn returns where a size is among those of the space, 0 for none and where it is not.
func (s *space) sizeIn(blockTokens int) info {
	for i, size := range s.sizes {
		if size == blockTokens {
			return info(i + 1) //nolint:gosec // at most sizeOf
		}
	}
	return 0
}

// enterSize is sizeIn, of a size that is to be there, 0 where there are too many.
func (s *space) enterSize(blockTokens int) info {
	if at := s.sizeIn(blockTokens); at != 0 || len(s.sizes) == int(sizeOf) {
		return at
	}
	s.sizes = append(s.sizes, blockTokens)
	return info(len(s.sizes)) //nolint:gosec // at most sizeOf
}
