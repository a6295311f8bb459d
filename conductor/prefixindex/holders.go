package prefixindex

import "slices"

// holding is one lane's copies of a block in one tier: 17 bits of lane, 2 of tier, 12
// that count. It is never zero.
type holding uint32

const (
	countBits = 12
	tierBits  = 2
	laneBits  = 17
	// maxCount copies and more are counted as so many. What is removed of them then
	// ends early: too little is told rather than too much.
	maxCount = 1<<countBits - 1
	maxLanes = 1 << laneBits
	// whose are the bits that say who holds it and where.
	whose = ^holding(maxCount)
)

func holdingOf(lane uint32, tier Tier) holding {
	return holding(lane<<(tierBits+countBits) | uint32(tier)<<countBits)
}

func (h holding) lane() uint32 { return uint32(h >> (tierBits + countBits)) }
func (h holding) tier() Tier   { return Tier(h >> countBits & (1<<tierBits - 1)) }
func (h holding) count() int   { return int(h & maxCount) }

// holders is who holds a block: nobody (0), one holding, or with the highest bit the
// place of a list of several.
type holders uint32

const isList = holders(1 << 31)

// lists are the lists of holdings, in pages of words: a list has a power of two of
// units, the first word of which says how many words there are behind it.
type lists struct {
	pages [][]holding
	// free are, by class, chains of lists not in use: the first word is the place of the
	// next one and 1.
	free [pageClass + 1]uint32
	// end is the first unit that was never used.
	end uint32
}

const (
	unitWords = 4
	pageUnits = 1 << pageClass
	pageClass = 12 // of a list that takes a whole page
	// maxList is the most holdings that a list can have.
	maxList   = pageUnits*unitWords - 1
	pageBytes = pageUnits * unitWords * 4
)

// classOf returns the class of a list of n holdings: the logarithm of its units.
func classOf(n int) int {
	class := 0
	for unitWords<<class < n+1 {
		class++
	}
	return class
}

// words returns the memory of a list of a class.
func (a *lists) words(at uint32, class int) []holding {
	from := at % pageUnits * unitWords
	return a.pages[at/pageUnits][from : from+unitWords<<class]
}

// of returns the holdings of a list, which are the arena's.
func (a *lists) of(h holders) []holding {
	at := uint32(h &^ isList)
	from := at % pageUnits * unitWords
	page := a.pages[at/pageUnits]
	return page[from+1 : from+1+uint32(page[from])]
}

// take returns the place of a list, false when there is no memory for more.
func (a *lists) take(class int, budget *budget) (at uint32, ok bool) {
	if f := a.free[class]; f != 0 {
		a.free[class] = uint32(a.words(f-1, class)[0])
		return f - 1, true
	}
	units := uint32(1) << class
	for a.end%units != 0 { // what is skipped can be used for smaller ones
		a.release(a.end, 0)
		a.end++
	}
	if a.end == uint32(len(a.pages)*pageUnits) { //nolint:gosec // checked below
		if a.end >= uint32(isList)-pageUnits || !budget.take(pageBytes) {
			return 0, false
		}
		a.pages = append(a.pages, make([]holding, pageUnits*unitWords))
	}
	a.end += units
	return a.end - units, true
}

func (a *lists) release(at uint32, class int) {
	a.words(at, class)[0] = holding(a.free[class])
	a.free[class] = at + 1
}

// view returns who holders are; one is where a single holding is put.
func (s *space) view(h holders, one *[1]holding) []holding {
	if h&isList != 0 {
		return s.lists.of(h)
	}
	if h == 0 {
		return nil
	}
	one[0] = holding(h)
	return one[:]
}

// add adds a copy. again: there was one before. ok is false when there is no memory.
func (s *space) add(to *holders, who holding) (again, ok bool) {
	var one [1]holding
	held := s.view(*to, &one)
	i, found := slices.BinarySearchFunc(held, who, func(a, b holding) int { return int(a>>countBits) - int(b>>countBits) })
	if found {
		if held[i].count() < maxCount {
			held[i]++
			if *to&isList == 0 {
				*to = holders(held[i])
			}
		}
		return true, true
	}
	if len(held) == 0 {
		*to = holders(who + 1)
		return false, true
	}
	return false, s.insertHolding(to, held, i, who+1)
}

// insertHolding puts a holding in its place among others.
func (s *space) insertHolding(to *holders, held []holding, i int, who holding) bool {
	n := len(held)
	was, isOne := uint32(*to&^isList), *to&isList == 0
	if !isOne && classOf(n) == classOf(n+1) {
		words := s.lists.words(was, classOf(n))
		copy(words[i+2:n+2], words[i+1:n+1])
		words[i+1], words[0] = who, holding(n+1) //nolint:gosec // at most maxList
		return true
	}
	if n == maxList {
		return false
	}
	at, ok := s.lists.take(classOf(n+1), &s.budget)
	if !ok {
		return false
	}
	words := s.lists.words(at, classOf(n+1))
	words[0] = holding(n + 1) //nolint:gosec // at most maxList
	copy(words[1:], held[:i])
	words[i+1] = who
	copy(words[i+2:], held[i:])
	if !isOne {
		s.lists.release(was, classOf(n))
	}
	*to = holders(at) | isList
	return true
}

// drop takes a copy away, or all, false when there was none.
func (s *space) drop(to *holders, who holding, all bool) bool {
	var one [1]holding
	held := s.view(*to, &one)
	i, found := slices.BinarySearchFunc(held, who, func(a, b holding) int { return int(a>>countBits) - int(b>>countBits) })
	if !found {
		return false
	}
	if held[i].count() > 1 && !all {
		held[i]--
		if *to&isList == 0 {
			*to = holders(held[i])
		}
		return true
	}
	s.keep(to, func(h holding) bool { return h&whose != who })
	return true
}

// keep drops the holdings for which keep is false.
func (s *space) keep(to *holders, keep func(holding) bool) {
	if *to&isList == 0 {
		if *to != 0 && !keep(holding(*to)) {
			*to = 0
		}
		return
	}
	was := uint32(*to &^ isList)
	held := s.lists.of(*to)
	n := len(held)
	left := 0
	for _, h := range held {
		if keep(h) {
			held[left] = h
			left++
		}
	}
	switch left {
	case n:
	case 0:
		*to = 0
		s.lists.release(was, classOf(n))
	case 1:
		*to = holders(held[0])
		s.lists.release(was, classOf(n))
	default:
		s.shrink(to, was, n, left)
	}
}

// shrink gives a list of n holdings, of which the first left are kept, a place of its
// size. Without memory for that it keeps them where they are, in one of the right
// class by halving.
func (s *space) shrink(to *holders, was uint32, n, left int) {
	class, wanted := classOf(n), classOf(left)
	words := s.lists.words(was, class)
	words[0] = holding(left) //nolint:gosec // at most maxList
	// The upper halves are given back: a list of a class is two of the one below.
	for class > wanted {
		class--
		s.lists.release(was+1<<class, class)
	}
	*to = holders(was) | isList
}
