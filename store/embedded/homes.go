package embedded

import (
	"cmp"
	"slices"
)

// home is a part of the memory that is nearer to some cores than to others: the
// slabs of one NUMA node. A store whose slabs are bound to none has one home.
//
// A slot is taken near who asks: from runs of the home that have room, then from
// the home's free slabs, and elsewhere after that, which comes before anything is
// evicted. When free slabs run short, room in runs elsewhere comes before a free
// slab at home, or each home would keep a part of a run for each size. What is
// evicted goes by one order over all homes: chunks are worth more than distance.
type home struct {
	free  []uint32 // slabs in no class
	used  uint64   // bytes of its slots in use
	ready uint32   // slabs with memory
}

// anyHome asks for a slot of the home that has most room.
const anyHome = -1

// MaxNodes is how many NUMA nodes a store is divided between at most: they label
// metrics.
const MaxNodes = 16

// maxHomes: the nodes, and none.
const maxHomes = MaxNodes + 1

// scarceShare: free slabs are scarce when they are at most this part of all.
const scarceShare = 32

func (a *slabAllocator) homeOf(slab uint32) *home { return &a.homes[a.slabs[slab].home] }

// freeSlabs is how many slabs are in no class.
func (a *slabAllocator) freeSlabs() (slabs int) {
	for i := range a.homes {
		slabs += len(a.homes[i].free)
	}
	return slabs
}

// scarce tells whether few slabs are free, those that are still to come included.
func (a *slabAllocator) scarce() bool {
	return (a.freeSlabs()+a.coming)*scarceShare <= len(a.slabs)
}

// choose finds where a slot of the class is to come from: a home with a partial
// run or, with opens, a run of free slabs that is to be opened there.
func (a *slabAllocator) choose(c *sizeClass, near int) (at int, id uint32, opens, ok bool) {
	if len(a.homes) == 1 { // what follows, in short
		if len(c.partial[0]) > 0 {
			return 0, 0, false, true
		}
		id, ok = a.freeRun(0, c.run)
		return 0, id, true, ok
	}
	if near == anyHome {
		near = a.roomiest()
	}
	if len(c.partial[near]) > 0 {
		return near, 0, false, true
	}
	// While slabs are still to come the few that are there are for sizes that have
	// none.
	if !a.scarce() && a.freeSlabs() >= len(a.homes) {
		if id, ok = a.freeRun(near, c.run); ok {
			return near, id, true, true
		}
	}
	if at, ok = a.partialHome(c, near); ok {
		return at, 0, false, true
	}
	for i := range a.homes {
		at = (near + i) % len(a.homes)
		if id, ok = a.freeRun(at, c.run); ok {
			return at, id, true, true
		}
	}
	return 0, 0, false, false
}

// partialHome finds a home with a partial run of the class, first the one that is
// asked for, then those behind it.
func (a *slabAllocator) partialHome(c *sizeClass, near int) (int, bool) {
	near = max(near, 0)
	for i := range a.homes {
		if at := (near + i) % len(a.homes); len(c.partial[at]) > 0 {
			return at, true
		}
	}
	return 0, false
}

// roomiest is the home with most memory that is not in use.
func (a *slabAllocator) roomiest() int {
	best, most := 0, uint64(0)
	for i := range a.homes {
		if room := uint64(a.homes[i].ready)*a.slabBytes - a.homes[i].used; room > most {
			best, most = i, room
		}
	}
	return best
}

// freeRun finds free slabs of a home next to each other and returns the first.
func (a *slabAllocator) freeRun(at int, slabs uint32) (uint32, bool) {
	free := a.homes[at].free
	if uint32(len(free)) < slabs {
		return 0, false
	}
	if slabs == 1 {
		return free[len(free)-1], true
	}
	sorted := slices.Sorted(slices.Values(free))
	for i := range sorted[:len(sorted)-int(slabs)+1] {
		if sorted[i+int(slabs)-1] == sorted[i]+slabs-1 {
			return sorted[i], true
		}
	}
	return 0, false
}

// sameHome tells whether slabs next to each other are of one home.
func (a *slabAllocator) sameHome(first, slabs uint32) bool {
	for id := first + 1; id < first+slabs; id++ {
		if a.slabs[id].home != a.slabs[first].home {
			return false
		}
	}
	return true
}

// othersHaveSlabs tells whether a slot size other than the class's has memory.
func (a *slabAllocator) othersHaveSlabs(c *sizeClass) bool {
	for _, other := range a.classes {
		if other != c && other.slabs > 0 {
			return true
		}
	}
	return false
}

// hasRoom tells whether a slot of the class can be handed out without taking a
// slab.
func (c *sizeClass) hasRoom() bool {
	return slices.ContainsFunc(c.partial, func(runs []uint32) bool { return len(runs) > 0 })
}

// spare is how many slots of a class can be handed out without taking a slab.
func (a *slabAllocator) spare(c *sizeClass) (slots uint64) {
	for at := range c.partial {
		slots += a.spareAt(c, at)
	}
	return slots
}

// spareAt is the same of one home.
func (a *slabAllocator) spareAt(c *sizeClass, at int) (slots uint64) {
	for _, id := range c.partial[at] {
		slots += uint64(a.slabs[id].slots - a.slabs[id].used)
	}
	return slots
}

// move returns a free slot of a class for a shard that leaves its own, at the
// same home if there is one, and takes no slab.
//
// REQUIRES: the class has room.
func (a *slabAllocator) move(c *sizeClass, from uint32) uint32 {
	at, ok := a.partialHome(c, int(a.slabs[from/a.slotsPerSlab].home))
	if !ok {
		panic("BUG: a free slot is none")
	}
	return a.take(c, at)
}

// emptiest returns the partial runs of a class in the order in which they should
// be emptied: those first whose shards have room at the same home, then those with
// the fewest.
func (a *slabAllocator) emptiest(c *sizeClass) []uint32 {
	runs := slices.Concat(c.partial...)
	spare := make([]uint64, len(c.partial))
	for at := range spare {
		spare[at] = a.spareAt(c, at)
	}
	leaves := func(id uint32) int {
		s := &a.slabs[id]
		if spare[s.home] >= uint64(s.slots) { // its own free slots and those it needs
			return 0
		}
		return 1
	}
	slices.SortFunc(runs, func(x, y uint32) int {
		return cmp.Or(cmp.Compare(leaves(x), leaves(y)), cmp.Compare(a.slabs[x].used, a.slabs[y].used), cmp.Compare(x, y))
	})
	return runs
}
