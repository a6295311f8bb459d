package embedded

import "slices"

// slab is a slab's allocation state.
type slab struct {
	slotBytes uint32 // 0: free
	slots     uint32 // slots it is cut into
	used      uint32
	fresh     uint32   // slots from here on were never handed out
	free      []uint32 // slots given back, by index in the slab
}

// sizeClass is the set of slabs cut into slots of one size.
type sizeClass struct {
	slotBytes uint32
	// partial are the slabs with a free slot, in no order.
	partial []uint32
	slabs   int
}

// slabAllocator hands out slots. It is pure; the segment's slab table is kept by
// its caller through assign and retire.
//
// INVARIANT: a slab is in its class's partial list iff used < slots.
type slabAllocator struct {
	slotsPerSlab uint32
	slabBytes    uint64
	slabs        []slab
	freeSlabs    []uint32
	classes      map[uint32]*sizeClass
	// keepEmpty: a slab stays in its class when it becomes empty, so that the
	// slots that an earlier master granted in it keep their places.
	keepEmpty bool
	// assign is told when a slab takes up or, with 0, leaves a size class. It may
	// refuse the first.
	assign func(slab, slotBytes uint32) error
	// used is what the slots in use take up, in bytes.
	used uint64
	// stuck: there was a free slab, and assign refused it.
	stuck bool
}

func newSlabAllocator(l *Layout, assign func(slab, slotBytes uint32) error) *slabAllocator {
	return &slabAllocator{
		slotsPerSlab: l.SlotsPerSlab, slabBytes: l.SlabBytes,
		slabs: make([]slab, l.Slabs), classes: map[uint32]*sizeClass{}, assign: assign,
	}
}

// addSlab makes a slab available that is in no class.
func (a *slabAllocator) addSlab(id uint32) { a.freeSlabs = append(a.freeSlabs, id) }

// alloc returns a free slot of the class, taking a free slab if it must.
func (a *slabAllocator) alloc(slotBytes uint32) (uint32, bool) {
	c := a.classes[slotBytes]
	if c == nil {
		c = &sizeClass{slotBytes: slotBytes}
		a.classes[slotBytes] = c
	}
	if len(c.partial) == 0 {
		if len(a.freeSlabs) == 0 {
			return 0, false
		}
		id := a.freeSlabs[len(a.freeSlabs)-1]
		if a.stuck = a.assign(id, slotBytes) != nil; a.stuck {
			return 0, false
		}
		a.freeSlabs = a.freeSlabs[:len(a.freeSlabs)-1]
		a.open(c, id)
	}
	id := c.partial[len(c.partial)-1]
	s := &a.slabs[id]
	var index uint32
	if n := len(s.free); n > 0 {
		index, s.free = s.free[n-1], s.free[:n-1]
	} else {
		index = s.fresh
		s.fresh++
	}
	s.used++
	a.used += uint64(s.slotBytes)
	if s.used == s.slots {
		c.partial = c.partial[:len(c.partial)-1]
	}
	return id*a.slotsPerSlab + index, true
}

// open gives a free slab to a class.
func (a *slabAllocator) open(c *sizeClass, id uint32) {
	a.slabs[id] = slab{slotBytes: c.slotBytes, slots: uint32(a.slabBytes / uint64(c.slotBytes)), free: a.slabs[id].free[:0]}
	c.partial = append(c.partial, id)
	c.slabs++
}

// release gives a slot back. A slab that becomes empty leaves its class, unless
// it is to be kept.
func (a *slabAllocator) release(slot uint32) {
	id := slot / a.slotsPerSlab
	s := &a.slabs[id]
	c := a.classes[s.slotBytes]
	if s.used == s.slots {
		c.partial = append(c.partial, id)
	}
	s.free = append(s.free, slot%a.slotsPerSlab)
	s.used--
	a.used -= uint64(s.slotBytes)
	if s.used == 0 && !a.keepEmpty {
		a.retire(id)
	}
}

// slotBytes returns the size of a slot in use.
func (a *slabAllocator) slotBytes(slot uint32) uint32 { return a.slabs[slot/a.slotsPerSlab].slotBytes }

// restore rebuilds a slab from what recovery found: the slots in use.
//
// REQUIRES: no slot was handed out from the slab yet.
func (a *slabAllocator) restore(id, slotBytes uint32, inUse []uint32) {
	c := a.classes[slotBytes]
	if c == nil {
		c = &sizeClass{slotBytes: slotBytes}
		a.classes[slotBytes] = c
	}
	s := slab{slotBytes: slotBytes, slots: uint32(a.slabBytes / uint64(slotBytes)), used: uint32(len(inUse))}
	taken := make([]bool, s.slots)
	for _, slot := range inUse {
		taken[slot%a.slotsPerSlab] = true
	}
	s.fresh = s.slots
	for i := range s.slots {
		if !taken[i] {
			s.free = append(s.free, i)
		}
	}
	a.slabs[id] = s
	a.used += uint64(s.used) * uint64(slotBytes)
	c.slabs++
	if s.used < s.slots {
		c.partial = append(c.partial, id)
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
	s.used++
	a.used += uint64(s.slotBytes)
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

// retire takes an empty slab out of its class.
func (a *slabAllocator) retire(id uint32) {
	s := &a.slabs[id]
	c := a.classes[s.slotBytes]
	a.removePartial(c, id)
	c.slabs--
	s.slotBytes = 0
	a.freeSlabs = append(a.freeSlabs, id)
	_ = a.assign(id, 0) // leaving is never refused
}

func (a *slabAllocator) removePartial(c *sizeClass, id uint32) {
	at := slices.Index(c.partial, id)
	c.partial = slices.Delete(c.partial, at, at+1)
}
