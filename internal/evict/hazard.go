package evict

import "math/bits"

// Hazard evicts the chunk that promises the fewest hits for the room it takes.
//
// Chunks are sorted into kinds by what only a store of prefixes knows: how often
// a chunk came back, and for one that never did, how many new chunks came with
// it, behind what they were appended, and whether it ended its request. For each
// kind the policy learns at which age, counted in uses of the store, chunks come
// back: the hazard of their reuse. Chunks that it evicted stay remembered for a
// while, so that it learns what they would have brought, too. A chunk of some
// kind and age is then worth the best it can be expected to bring from now on,
// hits per time, if it is kept up to the age where that is highest (Gittins'
// index of its hazard). Where nothing was learned yet, older chunks are worth
// less, which is LRU.
//
// Three quarters of a conversation's chunks never come back, and those that do
// take their time; LRU keeps all of them equally long, which is too short for
// those that matter. docs/eviction.md has figures, and what else was tried.
//
// Where the tables themselves promise little more than LRU, as in a store that
// is large for what it is asked for, it is LRU (learner.gain).
//
// A request's chunks come one after the other, root first or leaf first; such a
// run is put in order as a whole when it ends. Within a kind and age the victim
// is the oldest, and in a run the one next to the leaf: what is left of a chain
// is always its beginning.
//
// Repeated touches within an eighth of the store's turnover count once: a lookup,
// its load, and the same load by another rank are one use.
//
// 32 bytes a record, and as many for the chunks remembered; 10 KB for each class
// that occurs.
type Hazard struct {
	links links
	lists [MaxClasses]*agedLists
	used  uint64 // classes that have lists

	records []hazardRecord

	ghosts ghosts
	run    run
	clock  slotClock
	learn  learner
	n      int
	// recency: the order is LRU's, for too little was learned, or what was learned
	// promises too little.
	recency bool
}

var _ Policy = (*Hazard)(nil)

// hazardRecord is what is known of a resident chunk.
type hazardRecord struct {
	key      uint64
	parent   uint32 // tag of the parent's key
	lastSlot uint32 // of its last use; not set while it is in the run
	uses     uint8  // after its insertion
	kind     uint8
	class    uint8
	state    uint8
}

// States of a record.
const (
	isListed   = 1 << iota // in its class's lists, else in the run
	isFresh                // inserted by this run, and not remembered
	isUnsorted             // listed before anything was learned, not by its kind
)

// maxUses is where counting stops.
const maxUses = 255

// ghostsPerRecord is the memory of evicted chunks. See docs/eviction.md for what
// more or less of it brings.
const ghostsPerRecord = 4

// NewHazard returns a policy for the records [0, records).
func NewHazard(records int) *Hazard {
	h := &Hazard{links: newLinks(records), records: make([]hazardRecord, records), ghosts: newGhosts(ghostsPerRecord * records)}
	h.run = newRun()
	h.clock = newSlotClock()
	h.learn.reset()
	h.recency = true
	return h
}

// Name implements Policy.
func (h *Hazard) Name() string { return NameHazard }

// Len implements Policy.
func (h *Hazard) Len() int { return h.n }

// Insert implements Policy.
func (h *Hazard) Insert(record uint32, chunk Chunk) {
	h.tick()
	h.n++
	x := &h.records[record]
	*x = hazardRecord{key: chunk.Key, parent: tagOf(chunk.Parent), class: chunk.Class, state: isFresh}
	if h.lists[chunk.Class] == nil {
		h.lists[chunk.Class] = newAgedLists()
		h.used |= 1 << chunk.Class
	}
	if g, ok := h.ghosts.take(chunk.Key, h.clock.slot); ok {
		h.learn.reused(g.kind(), h.clock.slot, g.age(h.clock.slot))
		x.uses, x.state = g.uses()+1, 0
	}
	h.join(record)
}

// Touch implements Policy.
func (h *Hazard) Touch(record uint32) {
	h.tick()
	x := &h.records[record]
	if x.state&isListed == 0 {
		return // in the run already
	}
	h.unlist(record)
	if age := h.clock.slot - x.lastSlot; age == 0 {
		h.learn.undo(int(x.kind), h.clock.slot)
	} else {
		h.learn.reused(int(x.kind), h.clock.slot, age)
		x.uses = min(x.uses, maxUses-1) + 1
	}
	h.join(record)
}

// Remove implements Policy.
func (h *Hazard) Remove(record uint32) {
	if h.records[record].state&isListed == 0 {
		h.endRun()
	}
	h.unlist(record)
	h.n--
}

// Victim implements Policy.
func (h *Hazard) Victim(inUse func(uint32) bool) (uint32, bool) { return h.VictimOf(allClasses, inUse) }

// VictimOf implements Policy.
func (h *Hazard) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	if h.clock.evicting(h.n) {
		h.learn.reset()
		h.recency = true
		h.resetCursors()
	}
	r := h.worst(classes, inUse)
	if r == nobody && h.run.n > 0 {
		h.endRun()
		r = h.worst(classes, inUse)
	}
	if r == nobody {
		return 0, false
	}
	x := &h.records[r]
	h.ghosts.put(x.key, newGhost(x.key, x.lastSlot, h.clock.slot, x.kind, x.uses), h.clock.slot)
	h.unlist(r)
	h.n--
	return r, true
}

// tick counts a use of the store.
func (h *Hazard) tick() {
	if !h.clock.use(h.n) {
		return
	}
	h.learn.nextSlot(h.clock.slot, h.clock.fading())
	for left := h.used; left != 0; left &= left - 1 {
		h.lists[bits.TrailingZeros64(left)].nextSlot(h.links, h.clock.slot)
	}
	if h.clock.rankDue() {
		h.recency = h.clock.warm(h.run.mean) || h.learn.gain(h.n) < leastGain
		h.learn.rank(h.recency)
	}
}

// resetCursors makes the search for a victim begin at the first place again.
func (h *Hazard) resetCursors() {
	for left := h.used; left != 0; left &= left - 1 {
		h.lists[bits.TrailingZeros64(left)].cursor = 0
	}
}

// worst returns the record of least worth that is not vetoed, or nobody.
func (h *Hazard) worst(classes uint64, inUse func(uint32) bool) uint32 {
	best, bestRank := nobody, places
	for left := classes & h.used; left != 0; left &= left - 1 {
		a := h.lists[bits.TrailingZeros64(left)]
		empty := true // so far
		rank := a.cursor
		for ; rank < places && rank <= bestRank; rank++ {
			r, some := a.oldest(h.links, int(h.learn.order[rank]), h.clock.slot, inUse)
			if some && empty {
				a.cursor, empty = rank, false
			}
			if r == nobody {
				continue
			}
			if rank < bestRank || h.records[r].lastSlot < h.records[best].lastSlot {
				best, bestRank = r, rank
			}
			break
		}
		if empty {
			a.cursor = rank // none was found so far: a class without chunks is not walked again
		}
	}
	return best
}
