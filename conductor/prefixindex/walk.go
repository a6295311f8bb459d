package prefixindex

import "slices"

// walk goes along a prompt's blocks and keeps, for each rank that holds the first, how
// far it has come. Blocks that follow each other mostly have the same holders: they are
// counted together.
type walk struct {
	q     *Query
	chain []digest
	found found
	at    position // of the latest block that was looked up by its digest

	blocks int // that were taken into account
	// same are the holders of the latest blocks, and run how many those are.
	same []holding
	run  int
	rows []row
	// has is, by slot, what the holders at hand hold: a bit a tier.
	has []tierSet
	// lanes counts, by slot and tier, the dense lanes of the holders at hand.
	lanes []([tiers]int)
	// windows are those of the rows, one row's behind the other's.
	windows []windowRun
}

// tierSet has a bit for each tier.
type tierSet uint8

func (t tierSet) has(tier Tier) bool { return t&(1<<tier) != 0 }

const notGPU = tierSet(1<<CPU | 1<<Disk)

// row is one rank. Its counts are of blocks.
type row struct {
	slot   int
	stores []int // the slots of what it shares
	// age is that of the slots together when the row was made.
	age uint64
	// windows are those of the walk from the first to before the last.
	firstWindow, lastWindow int
	// in and through end where they are no longer alive.
	in, through [tiers]int
	alive       tierSet
	walking     tierSet
	// bestIn and best are in and through as far as windows allow.
	bestIn, best [tiers]int
}

func (w *walk) begin() {
	w.blocks, w.run, w.same, w.rows, w.windows = 0, 0, w.same[:0], w.rows[:0], w.windows[:0]
	w.at = position{}
}

// visit goes along the blocks that were found. It is false when nobody can come any
// further.
func (w *walk) visit(s *space) bool {
	var one [1]holding
	before := holders(0)
	for i, h := range w.found.holders {
		// Most blocks are held by the same one as the one before.
		if w.run > 0 && h != 0 && before != 0 && h&isList == 0 && (h^before)&^maxCount == 0 {
			w.run++
			continue
		}
		before = h
		held := w.found.of(s, i, &one)
		if w.blocks == 0 && w.run == 0 {
			w.start(s, held)
		}
		if w.run > 0 && alike(w.same, held) {
			w.run++
			continue
		}
		if !w.count(s) {
			return false
		}
		w.same, w.run = append(w.same[:0], held...), 1
	}
	return w.count(s)
}

// alike tells whether blocks have the same holders, however many copies. Nearly always
// they have: it looks at all of them without asking at each.
func alike(a, b []holding) bool {
	if len(a) != len(b) {
		return false
	}
	b = b[:len(a)]
	differ := holding(0)
	for ; len(a) >= 4 && len(b) >= 4; a, b = a[4:], b[4:] {
		differ |= (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3])
	}
	for i := range a {
		differ |= a[i] ^ b[i]
	}
	return differ&whose == 0
}

// start makes a row of each rank that can hold the first block, or whose store does.
func (w *walk) start(s *space, held []holding) {
	w.has = slices.Grow(w.has[:0], len(s.slots))[:len(s.slots)]
	w.lanes = slices.Grow(w.lanes[:0], len(s.slots))[:len(s.slots)]
	clear(w.lanes)
	w.look(s, held)
	for i := range s.slots {
		sl := &s.slots[i]
		if !sl.open || w.q.Instance != "" && sl.instance != w.q.Instance {
			continue
		}
		r := row{slot: i, stores: sl.stores}
		if sl.rank == Shared && (sl.ranks > 0 || sl.stores[0] != i) {
			continue // its ranks tell of it, or another store of all
		}
		if has := w.of(&r) != 0 && !r.crowded(s); has || r.truncated(s) {
			if has {
				r.alive, r.walking = 1<<tiers-1, 1<<tiers-1
			}
			r.age = r.ageNow(s)
			w.addWindows(s, &r)
			w.rows = append(w.rows, r)
		}
	}
}

// truncated tells whether blocks of a rank were dropped, or of its store.
func (r *row) truncated(s *space) bool {
	dropped := s.slots[r.slot].dropped
	for _, store := range r.stores {
		dropped += s.slots[store].dropped
	}
	return dropped > 0
}

// crowded tells whether there are groups of a rank, or of its store, that are not counted.
func (r *row) crowded(s *space) bool {
	return s.slots[r.slot].crowded || slices.ContainsFunc(r.stores, func(store int) bool { return s.slots[store].crowded })
}

// of returns where a rank has the blocks at hand.
func (w *walk) of(r *row) tierSet {
	has := w.has[r.slot]
	for _, store := range r.stores {
		has |= w.has[store] & notGPU
	}
	return has
}

// look notes who holds the blocks at hand.
func (w *walk) look(s *space, held []holding) {
	clear(w.has)
	for _, h := range held {
		if ln := &s.lanes[h.lane()]; !ln.retired && ln.kind == dense {
			w.lanes[ln.slot][h.tier()]++
			if w.lanes[ln.slot][h.tier()] == s.slots[ln.slot].dense[h.tier()] {
				w.has[ln.slot] |= 1 << h.tier()
			}
		}
	}
	for _, h := range held {
		w.lanes[s.lanes[h.lane()].slot] = [tiers]int{}
	}
}

// count takes the latest blocks into account. It is false when no rank goes on.
func (w *walk) count(s *space) bool {
	if w.run == 0 {
		return true
	}
	if len(s.slots) > len(w.has) { // opened meanwhile
		w.has = append(w.has, make([]tierSet, len(s.slots)-len(w.has))...)
		w.lanes = append(w.lanes, make([][tiers]int, len(s.slots)-len(w.lanes))...)
	}
	w.look(s, w.same)
	w.blocks += w.run
	goesOn := false
	for i := range w.rows {
		r := &w.rows[i]
		if r.gone(s) {
			r.alive, r.walking = 0, 0
			continue
		}
		r.advance(w.of(r), w.run)
		w.countWindows(s, r)
		for tier := range Tier(tiers) {
			if r.alive.has(tier) && w.windowsAllow(r, 1<<tier) {
				r.bestIn[tier] = r.in[tier]
			}
			if r.walking.has(tier) && w.windowsAllow(r, 1<<(tier+1)-1) {
				r.best[tier] = r.through[tier]
			}
		}
		goesOn = goesOn || r.goesOn()
	}
	w.run = 0
	return goesOn
}

// gone tells whether a row's slots have been cleared or are others' meanwhile.
func (r *row) gone(s *space) bool { return r.ageNow(s) != r.age }

// ageNow is the age of the slots together, which only rises.
func (r *row) ageNow(s *space) uint64 {
	age := s.slots[r.slot].age
	for _, store := range r.stores {
		age += s.slots[store].age
	}
	return age
}

func (r *row) goesOn() bool { return r.alive|r.walking != 0 }

// advance goes on by n blocks that are held in some tiers.
func (r *row) advance(has tierSet, n int) {
	onGPU := r.alive.has(GPU) && has.has(GPU)
	for tier := range Tier(tiers) {
		if r.alive.has(tier) && has.has(tier) {
			r.in[tier] += n
		} else {
			r.alive &^= 1 << tier
		}
	}
	// Behind what the GPU holds come the others; what the GPU has further on is out of
	// reach.
	for tier, from := range [tiers]tierSet{GPU: 0, CPU: 1 << CPU, Disk: notGPU} {
		if r.walking.has(Tier(tier)) && (onGPU || has&from != 0) { //nolint:gosec // three
			r.through[tier] += n
		} else {
			r.walking &^= 1 << tier
		}
	}
}

// matches appends what was found.
func (w *walk) matches(s *space, dst []Match) []Match {
	for i := range w.rows {
		r := &w.rows[i]
		if r.gone(s) {
			continue
		}
		sl := &s.slots[r.slot]
		m := Match{Instance: sl.instance, Rank: sl.rank, Truncated: r.truncated(s)}
		for tier := range Tier(tiers) {
			m.In[tier] = r.bestIn[tier] * w.q.BlockTokens
			m.Through[tier] = r.best[tier] * w.q.BlockTokens
		}
		if m != (Match{Instance: m.Instance, Rank: m.Rank}) {
			dst = append(dst, m)
		}
	}
	return dst
}
