package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// validateHomes checks what the allocator counts by home against the slabs.
func (a *slabAllocator) validateHomes(t fataler) {
	used, free := make([]uint64, len(a.homes)), make([][]uint32, len(a.homes))
	partial := map[string][]uint32{}
	for id := uint32(0); id < uint32(len(a.slabs)); id++ {
		s := &a.slabs[id]
		used[s.home] += uint64(s.used) * uint64(s.slotBytes)
		if s.slotBytes == 0 {
			continue
		}
		c := a.classes[s.slotBytes]
		if !a.sameHome(id, c.run) {
			t.Fatalf("the run of slabs at %d has several homes", id)
		}
		if s.used < s.slots && !s.held {
			key := fmt.Sprint(s.slotBytes, "@", s.home)
			partial[key] = append(partial[key], id)
		}
	}
	total := uint64(0)
	for at := range a.homes {
		h := &a.homes[at]
		for _, id := range h.free {
			if s := &a.slabs[id]; int(s.home) != at || s.slotBytes != 0 || s.behind {
				t.Fatalf("slab %d is free at home %d: %+v", id, at, s)
			}
			free[at] = append(free[at], id)
		}
		slices.Sort(free[at])
		if len(slices.Compact(free[at])) != len(h.free) {
			t.Fatalf("home %d has a slab free twice: %v", at, h.free)
		}
		if used[at] != h.used {
			t.Fatalf("home %d has %d bytes in use and counts %d", at, used[at], h.used)
		}
		total += h.used
		for size, c := range a.classes {
			runs := slices.Clone(c.partial[at])
			slices.Sort(runs)
			if key := fmt.Sprint(size, "@", at); !slices.Equal(runs, partial[key]) {
				t.Fatalf("slots of %d at home %d: partial runs %v, listed %v", size, at, partial[key], runs)
			}
		}
	}
	if total != a.used {
		t.Fatalf("homes have %d bytes in use together, the allocator %d", total, a.used)
	}
}

// someNodes is a machine of random runs: mostly with one node.
func someNodes(rng *rand.Rand) []NodeRoom {
	var nodes []NodeRoom
	for i := range max(rng.IntN(8)-4, 0) {
		nodes = append(nodes, NodeRoom{Node: 2 * i, Bytes: rng.Uint64N(8 << 20)})
	}
	return nodes
}

// homesAllocator has prepared slabs of homes in turns of n.
func homesAllocator(slabs uint32, homes, n int) *slabAllocator {
	l := &Layout{SlabBytes: 2 << 20, Slabs: slabs, SlotsPerSlab: 512}
	homeOf := make([]uint8, slabs)
	for i := range homeOf {
		homeOf[i] = uint8(i / n % homes)
	}
	a := newSlabAllocator(l, homes, homeOf, func(uint32, uint32) error { return nil })
	for id := range slabs {
		a.addSlab(id)
	}
	return a
}

// TestAllocatorOfHomes: whatever is taken and given back in whatever order, each
// slot is handed out once, and none is refused while its home, or any, has one.
func TestAllocatorOfHomes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		homes := rapid.IntRange(1, 4).Draw(t, "homes")
		a := homesAllocator(rapid.Uint32Range(96, 140).Draw(t, "slabs"), homes, rapid.IntRange(1, 40).Draw(t, "turn"))
		sizes := []uint32{300 << 10, 700 << 10, 1500 << 10, 4 << 20, 6 << 20} // some in runs
		taken := map[uint32]uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { a.validateHomes(t) },
			"alloc": func(t *rapid.T) {
				size, near := rapid.SampledFrom(sizes).Draw(t, "size"), rapid.IntRange(-1, homes-1).Draw(t, "near")
				for range rapid.IntRange(1, 40).Draw(t, "n") {
					slot, ok := a.alloc(size, near)
					if c := a.class(size); !ok {
						for at := range a.homes {
							if _, free := a.freeRun(at, c.run); free || c.hasRoom() {
								t.Fatalf("a slot of %d is refused, and there is room at home %d", size, at)
							}
						}
						return
					}
					if _, twice := taken[slot]; twice {
						t.Fatalf("slot %d is handed out twice", slot)
					}
					taken[slot] = size
				}
			},
			"release": func(t *rapid.T) {
				slots := make([]uint32, 0, len(taken))
				for slot := range taken {
					slots = append(slots, slot)
				}
				slices.Sort(slots)
				for range min(len(slots), rapid.IntRange(0, 30).Draw(t, "n")) {
					i := rapid.IntRange(0, len(slots)-1).Draw(t, "slot")
					a.release(slots[i])
					delete(taken, slots[i])
					if slots = slices.Delete(slots, i, i+1); len(slots) == 0 {
						return
					}
				}
			},
		})
	})
}

// TestScarceSlabsAreShared: while slabs are scarce, room in a run elsewhere is
// taken before a free slab at home is cut for the size.
func TestScarceSlabsAreShared(t *testing.T) {
	a := homesAllocator(64, 2, 32)
	const small, large = 64 << 10, 1 << 20
	elsewhere, _ := a.alloc(small, 1)
	slot, _ := a.alloc(small, 0)
	if a.slabs[slot/a.slotsPerSlab].home != 0 {
		t.Fatal("with many free slabs a slot came from elsewhere")
	}
	a.release(slot)
	for a.freeSlabs() > 2 { // of 64: scarce
		if _, ok := a.alloc(large, 1); !ok {
			t.Fatal("no room")
		}
	}
	if slot, _ = a.alloc(small, 0); slot/a.slotsPerSlab != elsewhere/a.slotsPerSlab {
		t.Fatalf("a slab was cut although slab %d has room: slot %d", elsewhere/a.slotsPerSlab, slot)
	}
	a.validateHomes(t)
}

// TestRefusedSlabAtHome: when a free slab can't be taken up, room in a run
// elsewhere is; and that it was refused does not outlive the call.
func TestRefusedSlabAtHome(t *testing.T) {
	a := homesAllocator(96, 2, 48)
	const small, large, row = 64 << 10, 1 << 20, 6 << 20 // the last in runs
	elsewhere, _ := a.alloc(small, 1)
	a.assign = func(uint32, uint32) error { return errors.New("no memory") }
	for _, near := range []int{0, anyHome} {
		if slot, ok := a.alloc(small, near); !ok || slot/a.slotsPerSlab != elsewhere/a.slotsPerSlab || a.stuck {
			t.Fatalf("near %d: slot %d, %v, stuck %v; slab %d has room", near, slot, ok, a.stuck, elsewhere/a.slotsPerSlab)
		}
	}
	if _, ok := a.alloc(large, 0); ok || !a.stuck {
		t.Fatalf("a refused slab: %v, stuck %v", ok, a.stuck)
	}
	for at := range a.homes {
		a.homes[at].free = a.homes[at].free[:1]
	}
	if _, ok := a.alloc(row, 0); ok || a.stuck {
		t.Fatalf("no free run of slabs: %v, stuck %v", ok, a.stuck)
	}
}

// TestSlabsToComeAreNotScarce: while memory is still being allocated nobody goes
// elsewhere or moves chunks for the lack of it. When there will be no more, they do.
func TestSlabsToComeAreNotScarce(t *testing.T) {
	w := newBareWorld(t, 64<<20)
	if w.m.alloc.scarce() {
		t.Fatal("slabs are scarce before the first one was prepared")
	}
	if _, err := w.m.PrepareNext(); err != nil || w.m.alloc.scarce() {
		t.Fatalf("slabs are scarce after the first: %v", err)
	}
	w.m.mem = refusingMemory{w.m.mem}
	if more, err := w.m.PrepareNext(); more || !errors.Is(err, errRefused) {
		t.Fatalf("prepared %v, %v", more, err)
	}
	if !w.m.alloc.scarce() { // one of 32 is free
		t.Fatal("slabs that will not come count as free")
	}
	w = newWorld(t, 64<<20)
	if got := w.m.alloc.coming; got != 0 {
		t.Fatalf("%d slabs are still to come, and all are there", got)
	}
	w.crash()
	if got := w.m.alloc.coming; got != 0 {
		t.Fatalf("%d slabs are still to come after a takeover, and all are there", got)
	}
}

var errRefused = errors.New("refused")

// refusingMemory has no more.
type refusingMemory struct{ Memory }

func (refusingMemory) Prepare(uint64, uint64) error { return errRefused }
