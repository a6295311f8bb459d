package embedded

import (
	"slices"
	"time"
)

// slab is the allocation state of a slab, or of a run of slabs that are cut
// together: then it is the first one's.
type slab struct {
	slotBytes uint32 // 0: free, or behind the first of a run
	slots     uint32 // slots it is cut into
	used      uint32
	fresh     uint32   // slots from here on were never handed out
	free      []uint32 // slots given back, by index in the run
	behind    bool     // in a run that another slab is the first of
	// held: no slot of it is handed out, because its chunks are moving elsewhere.
	held bool
	home uint8 // see homes
}

// sizeClass is the set of runs cut into slots of one size.
type sizeClass struct {
	slotBytes uint32
	run       uint32 // slabs in a run
	// partial are the runs with a free slot that are not held, by home, in no order.
	partial [][]uint32
	slabs   int
	// turned and evicted are what tells whether the class should have more memory,
	// see Master.balanceLocked.
	turned  uint64        // bytes evicted since it was last looked at
	evicted time.Duration // age of what it evicts, lately
}

// slabAllocator hands out slots. It is pure; the segment's slab table is kept by
// its caller through assign and retire.
//
// A size whose slots would leave much of a slab over is cut from a run of slabs
// that are next to each other (Layout.runOf) and of one home. A slot has the first
// slab's number in its own, however far into the run it is.
//
// INVARIANT: a run is in its class's partial list of its home iff used < slots and
// it is not held.
type slabAllocator struct {
	slotsPerSlab uint32
	slabBytes    uint64
	runOf        func(slotBytes uint32) uint32
	slabs        []slab
	homes        []home
	classes      map[uint32]*sizeClass
	// keepEmpty: a slab stays in its class when it becomes empty, so that the
	// slots that an earlier master granted in it keep their places.
	keepEmpty bool
	// assign is told when a slab takes up or, with 0, leaves a size class. It may
	// refuse the first.
	assign func(slab, slotBytes uint32) error
	// used is what the slots in use take up, in bytes.
	used uint64
	// stuck: the last slot asked for would have been in a free slab, which assign
	// refused.
	stuck bool
	// coming is how many slabs will be added yet.
	coming int
}

// newSlabAllocator makes an allocator for slabs of homes, whose number each slab
// has in homeOf.
func newSlabAllocator(l *Layout, homes int, homeOf []uint8, assign func(slab, slotBytes uint32) error) *slabAllocator {
	a := &slabAllocator{
		slotsPerSlab: l.SlotsPerSlab, slabBytes: l.SlabBytes, runOf: l.runOf,
		slabs: make([]slab, l.Slabs), homes: make([]home, homes), classes: map[uint32]*sizeClass{}, assign: assign,
		coming: int(l.Slabs),
	}
	for i := range a.slabs {
		a.slabs[i].home = homeOf[i]
	}
	return a
}

// addSlab makes a slab available that is in no class.
func (a *slabAllocator) addSlab(id uint32) {
	h := a.homeOf(id)
	a.ready(h, 1)
	h.free = append(h.free, id)
}

// ready counts slabs of a home that have memory.
func (a *slabAllocator) ready(h *home, slabs uint32) {
	h.ready += slabs
	a.coming = max(a.coming-int(slabs), 0)
}

func (a *slabAllocator) class(slotBytes uint32) *sizeClass {
	c := a.classes[slotBytes]
	if c == nil {
		c = &sizeClass{slotBytes: slotBytes, run: a.runOf(slotBytes), partial: make([][]uint32, len(a.homes))}
		a.classes[slotBytes] = c
	}
	return c
}

// perRun is how many slots a run of the class has.
func (a *slabAllocator) perRun(c *sizeClass) uint32 {
	return uint32(uint64(c.run) * a.slabBytes / uint64(c.slotBytes))
}

// alloc returns a free slot of the class, taking free slabs if it must: of the
// home if there is one, else of another. With anyHome the homes fill evenly.
func (a *slabAllocator) alloc(slotBytes uint32, near int) (uint32, bool) {
	c := a.class(slotBytes)
	at, id, opens, ok := a.choose(c, near)
	a.stuck = false
	switch {
	case !ok:
		return 0, false
	case !opens:
	case a.assign(id, slotBytes) == nil:
		a.open(c, id)
	default:
		if at, ok = a.partialHome(c, near); !ok {
			a.stuck = true
			return 0, false
		}
	}
	return a.take(c, at), true
}

// take hands out a slot of a partial run of the home.
//
// REQUIRES: there is one.
func (a *slabAllocator) take(c *sizeClass, at int) uint32 {
	partial := &c.partial[at]
	id := (*partial)[len(*partial)-1]
	s := &a.slabs[id]
	var index uint32
	if n := len(s.free); n > 0 {
		index, s.free = s.free[n-1], s.free[:n-1]
	} else {
		index = s.fresh
		s.fresh++
	}
	a.count(s, 1)
	if s.used == s.slots {
		*partial = (*partial)[:len(*partial)-1]
	}
	return id*a.slotsPerSlab + index
}

// count notes slots that went into use, or out of it.
func (a *slabAllocator) count(s *slab, slots int) {
	bytes := uint64(slots) * uint64(s.slotBytes) // below 0 it wraps, and so do the sums
	s.used += uint32(slots)
	a.used += bytes
	a.homes[s.home].used += bytes
}

// open gives a run of free slabs to a class.
func (a *slabAllocator) open(c *sizeClass, id uint32) {
	free := &a.homeOf(id).free
	for i := id; i < id+c.run; i++ {
		at := slices.Index(*free, i)
		*free = slices.Delete(*free, at, at+1)
	}
	a.cut(c, id)
	a.addPartial(c, id)
}

// cut makes a run of the class, with no slot in use.
func (a *slabAllocator) cut(c *sizeClass, id uint32) {
	at := a.slabs[id].home
	a.slabs[id] = slab{slotBytes: c.slotBytes, slots: a.perRun(c), free: a.slabs[id].free[:0], home: at}
	for i := id + 1; i < id+c.run; i++ {
		a.slabs[i] = slab{behind: true, home: at}
	}
	c.slabs += int(c.run)
}

// release gives a slot back. A slab that becomes empty leaves its class, unless
// it is to be kept.
func (a *slabAllocator) release(slot uint32) {
	id := slot / a.slotsPerSlab
	s := &a.slabs[id]
	if s.used == s.slots && !s.held {
		a.addPartial(a.classes[s.slotBytes], id)
	}
	s.free = append(s.free, slot%a.slotsPerSlab)
	a.count(s, -1)
	if s.used == 0 && !a.keepEmpty {
		a.retire(id)
	}
}

// slotBytes returns the size of a slot in use.
func (a *slabAllocator) slotBytes(slot uint32) uint32 { return a.slabs[slot/a.slotsPerSlab].slotBytes }

// restore rebuilds a run from what recovery found: the slots in use.
//
// REQUIRES: no slot was handed out from the run yet, and all of its slabs are in
// no class and of one home.
func (a *slabAllocator) restore(id, slotBytes uint32, inUse []uint32) {
	c := a.class(slotBytes)
	a.cut(c, id)
	a.ready(a.homeOf(id), c.run)
	s := &a.slabs[id]
	s.fresh = s.slots
	a.count(s, len(inUse))
	taken := make([]bool, s.slots)
	for _, slot := range inUse {
		taken[slot%a.slotsPerSlab] = true
	}
	for i := range s.slots {
		if !taken[i] {
			s.free = append(s.free, i)
		}
	}
	if s.used < s.slots {
		a.addPartial(c, id)
	}
}

// claim takes a particular slot out of the free ones, for a writer or reader
// that an earlier master had given it to. False: it is not free.
func (a *slabAllocator) claim(slot uint32) bool {
	id := slot / a.slotsPerSlab
	s := &a.slabs[id]
	at := slices.Index(s.free, slot%a.slotsPerSlab)
	if at < 0 {
		return false
	}
	s.free = slices.Delete(s.free, at, at+1)
	a.count(s, 1)
	if s.used == s.slots {
		a.removePartial(a.classes[s.slotBytes], id)
	}
	return true
}

// retireEmpty frees the slabs that were kept in their class although none of
// their slots is in use, and keeps none from now on.
func (a *slabAllocator) retireEmpty() {
	a.keepEmpty = false
	for id := range a.slabs {
		if s := &a.slabs[id]; s.slotBytes != 0 && s.used == 0 {
			a.retire(uint32(id))
		}
	}
}

// retire takes an empty run out of its class.
func (a *slabAllocator) retire(id uint32) {
	s := &a.slabs[id]
	c, h := a.classes[s.slotBytes], a.homeOf(id)
	if !s.held {
		a.removePartial(c, id)
	}
	c.slabs -= int(c.run)
	for i := id; i < id+c.run; i++ {
		a.slabs[i] = slab{free: a.slabs[i].free, home: s.home}
		h.free = append(h.free, i)
	}
	_ = a.assign(id, 0) // leaving is never refused
}

// hold keeps a run's free slots from being handed out.
func (a *slabAllocator) hold(id uint32) {
	s := &a.slabs[id]
	if s.used < s.slots {
		a.removePartial(a.classes[s.slotBytes], id)
	}
	s.held = true
}

// unhold ends it, if the run still is one.
func (a *slabAllocator) unhold(id uint32) {
	s := &a.slabs[id]
	if s.held {
		s.held = false
		if s.used < s.slots {
			a.addPartial(a.classes[s.slotBytes], id)
		}
	}
}

// idleBytes is the memory of slabs in classes that holds nothing: free slots,
// and what is left over where slots do not fill a run.
func (a *slabAllocator) idleBytes() uint64 {
	total := uint64(0)
	for _, c := range a.classes {
		total += uint64(c.slabs) * a.slabBytes
	}
	return total - a.used
}

func (a *slabAllocator) addPartial(c *sizeClass, id uint32) {
	partial := &c.partial[a.slabs[id].home]
	*partial = append(*partial, id)
}

func (a *slabAllocator) removePartial(c *sizeClass, id uint32) {
	partial := &c.partial[a.slabs[id].home]
	at := slices.Index(*partial, id)
	*partial = slices.Delete(*partial, at, at+1)
}
