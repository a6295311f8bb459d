package evict

const (
	// slotsPerTurnover is how finely ages are told apart: a slot is that part of
	// the uses that a store has chunks.
	slotsPerTurnover = 8
	// leastRuns is the number of requests that a store must have room for to choose
	// between them; a smaller one is LRU.
	leastRuns = 80
	// warmSlots are learned from before anything but age counts.
	warmSlots = 3 * slotsPerTurnover
	// memorySlots and memoryUses: what was learned fades within that many slots,
	// or uses if they are more.
	memorySlots = 16 * slotsPerTurnover
	memoryUses  = 50_000
	// leastRankUses is the least number of uses between two rankings.
	leastRankUses = 64
)

// slotClock counts uses of the store, in slots that are a fixed part of the
// chunks it holds.
type slotClock struct {
	slot   uint32
	length int // uses in a slot
	left   int // of them
	ranked int // uses since the last ranking
	// scale is the number of chunks that the slots are made for, fixed from the
	// first eviction on unless the number changes by more than a factor of two.
	scale int
	since uint32 // slot at which scale was fixed
	full  bool   // there were evictions
}

func newSlotClock() slotClock { return slotClock{length: 1, left: 1} }

// use counts a use of a store of n chunks and tells whether a slot began.
func (c *slotClock) use(n int) bool {
	c.ranked++
	if c.left--; c.left > 0 {
		return false
	}
	c.slot++
	if !c.full {
		c.scale = n
	}
	c.length = max(c.scale/slotsPerTurnover, 1)
	c.left = c.length
	return true
}

// evicting notes that a store of n chunks evicts. True: the slots have another
// length from now on, and what was learned in those before counts no more.
func (c *slotClock) evicting(n int) bool {
	if c.full && n <= 2*c.scale && c.scale <= 2*n {
		return false
	}
	c.full, c.scale, c.since = true, n, c.slot
	c.left = min(c.left, max(n/slotsPerTurnover, 1))
	return true
}

// warm: too little was learned to go by, or there is too little room for requests
// of that many chunks.
func (c *slotClock) warm(chunks float64) bool {
	return !c.full || float64(c.scale) < leastRuns*chunks || c.slot-c.since < warmSlots
}

// rankDue tells, once in a while, that it is time.
func (c *slotClock) rankDue() bool {
	if c.ranked < max(c.scale/4, leastRankUses) {
		return false
	}
	c.ranked = 0
	return true
}

// fading is the part of what was learned that a slot leaves.
func (c *slotClock) fading() float64 {
	return 1 - float64(c.length)/max(float64(memorySlots*c.length), memoryUses)
}
