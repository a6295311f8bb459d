package prefixindex

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

func ofGroup(group int, e *kvevents.BlockStored) *kvevents.BlockStored {
	e.Group = &group
	return e
}

func ofKind(group int, kind string, window int, e *kvevents.BlockStored) *kvevents.BlockStored {
	e.SpecKind, e.Window = kind, window
	return ofGroup(group, e)
}

func goneOf(group int, hashes ...kvevents.Hash) *kvevents.BlockRemoved {
	e := gone("GPU", hashes...)
	e.Group = &group
	return e
}

// leaves is an event that has left out all but some of its blocks.
func leaves(e *kvevents.BlockStored, hashes ...kvevents.Hash) *kvevents.BlockStored {
	e.Hashes = hashes
	return e
}

// A group of which no block is left is still one that a prefix needs.
func TestAGroupOfNothingIsAGroup(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, ofGroup(0, blocks("GPU", 0, 1, 2)), ofGroup(1, blocks("GPU", 0, 1, 2)))
	d.expect(Query{Tokens: tokensOf(1, 2)}, onGPU("a", 8))
	apply(a, goneOf(1, 2, 1))
	d.expect(Query{Tokens: tokensOf(1, 2)})
	apply(a, &kvevents.AllBlocksCleared{}, ofGroup(0, blocks("GPU", 0, 1, 2)))
	d.expect(Query{Tokens: tokensOf(1, 2)}, onGPU("a", 8))
}

// A state or a window that was told of with no block at all is needed, too.
func TestAGroupToldOfWithoutABlock(t *testing.T) {
	for name, e := range map[string]*kvevents.BlockStored{
		"state": ofKind(1, "mamba", 0, leaves(blocks("GPU", 0, 1, 2))), "window": ofKind(1, "sliding_window", 8, leaves(blocks("GPU", 0, 1, 2))),
		"unnamed": ofGroup(1, leaves(blocks("GPU", 0, 1, 2))),
	} {
		d := newTold(t, Options{})
		a := d.open(Origin{Instance: name})
		apply(a, ofGroup(0, blocks("GPU", 0, 1, 2)), e)
		d.expect(Query{Tokens: tokensOf(1, 2)})
		apply(a, ofKind(1, "mamba", 0, leaves(blocks("GPU", 0, 1, 2), 1, 2)))
		d.expect(Query{Tokens: tokensOf(1, 2)}, onGPU(name, 8))
	}
}

// Of a group of a kind that nobody knows all blocks are needed.
func TestKindsThatAreNotKnown(t *testing.T) {
	for _, kind := range []string{"chunked_local_attention", "unknown", "of_tomorrow"} {
		d := newTold(t, Options{})
		a := d.open(Origin{Instance: "a"})
		apply(a, ofGroup(0, blocks("GPU", 0, 1, 2, 3)), ofKind(1, kind, 0, blocks("GPU", 0, 1, 2)))
		d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 8))
	}
}

// A window whose size is not told reaches as far back as what was not left out.
func TestAWindowOfUnknownSize(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, ofGroup(0, blocks("GPU", 0, 1, 2, 3, 4)), ofGroup(1, leaves(blocks("GPU", 0, 1, 2, 3, 4), 3, 4)))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 16))
	apply(a, goneOf(1, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)})
}

// Where there are more groups than any engine has, nobody knows what a prefix needs.
func TestGroupsAreBounded(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, ofGroup(0, blocks("GPU", 0, 1)))
	for group := range 1000 {
		apply(a, ofKind(1+group, "mamba", 0, blocks("GPU", 0, 1)))
	}
	if len(a.lanes) != maxGroups || len(a.space.lanes) != maxGroups {
		t.Errorf("%d groups", len(a.lanes))
	}
	d.expect(Query{Tokens: tokensOf(1)}, Match{Instance: "a", Truncated: true})
	if s := a.Stats(); s.Dropped != 1001-maxGroups || s.Stored != maxGroups {
		t.Errorf("%+v", s)
	}
	apply(a, &kvevents.AllBlocksCleared{}, ofGroup(0, blocks("GPU", 0, 1)))
	d.expect(Query{Tokens: tokensOf(1)}, onGPU("a", 4))
}

// A group counts where there is no memory for anything more.
func TestAGroupWithoutMemory(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, ofGroup(0, blocks("GPU", 0, 1, 2)))
	a.space.budget.max = d.x.Bytes() + laneBytes - 1
	apply(a, ofKind(1, "sliding_window", 8, leaves(blocks("GPU", 0, 1, 2))))
	d.expect(Query{Tokens: tokensOf(1, 2)})
}

// Blocks that are in several records have each holder once, in order.
func TestOneHolderOfTwoRecordsIsOne(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	// The engine was started anew with another seed of hashes; group 1 never got block 1.
	for _, hash := range []kvevents.Hash{1, 101, 201} {
		e := blocks("GPU", 0, 1)
		e.Hashes = []kvevents.Hash{hash}
		apply(a, ofGroup(0, e))
	}
	apply(a, ofGroup(1, blocks("GPU", 0, 7)))
	d.expect(Query{Tokens: tokensOf(1)})
}

// An adapter that only has a number is none that anybody asks for.
func TestAnAdapterWithoutAName(t *testing.T) {
	d := newTold(t, Options{})
	id := int64(3)
	nameless := blocks("GPU", 0, 1, 2)
	nameless.LoraID = &id
	apply(d.open(Origin{Instance: "a"}), nameless)
	d.expect(Query{Tokens: tokensOf(1, 2)})
	d.expect(Query{Hashes: []kvevents.Hash{1, 2}}, onGPU("a", 8))
	apply(d.open(Origin{Instance: "of one adapter", LoRA: "l"}), nameless)
	d.expect(Query{Tokens: tokensOf(1, 2), LoRA: "l"}, onGPU("of one adapter", 8))
}

// Engines whose adapter is not in their hashes call other blocks by the same hash.
func TestEnginesWithAnAdapterAreApart(t *testing.T) {
	d := newTold(t, Options{})
	base, adapted := d.open(Origin{Instance: "base"}), d.open(Origin{Instance: "adapted", LoRA: "l"})
	apply(base, blocks("GPU", 0, 1, 2))
	apply(adapted, blocks("GPU", 0, 1, 2))
	d.expect(Query{Hashes: []kvevents.Hash{1, 2}}, onGPU("base", 8))
	d.expect(Query{Hashes: []kvevents.Hash{1, 2}, LoRA: "l"}, onGPU("adapted", 8), onGPU("base", 8))
	apply(adapted, &kvevents.BlockStored{Hashes: []kvevents.Hash{2}, Medium: "GPU"}, gone("GPU", 1))
	d.expect(Query{Tokens: tokensOf(1, 2)}, onGPU("base", 8))
	d.expect(Query{Tokens: tokensOf(1, 2), LoRA: "l"})
}

// A request's salt is no engine's.
func TestSaltsOfRequestsAndEngines(t *testing.T) {
	d := newTold(t, Options{})
	apply(d.open(Origin{Instance: "request"}), withExtra(blocks("GPU", 0, 1), "", "s"))
	apply(d.open(Origin{Instance: "engine", Salt: "s"}), blocks("GPU", 0, 1))
	apply(d.open(Origin{Instance: "both", Salt: "s"}), withExtra(blocks("GPU", 0, 1), "", "s"))
	d.expect(Query{Tokens: tokensOf(1), Salt: "s"}, onGPU("request", 4))
	d.expect(Query{Tokens: tokensOf(1), EngineSalt: "s"}, onGPU("engine", 4))
	d.expect(Query{Tokens: tokensOf(1), Salt: "s", EngineSalt: "s"}, onGPU("both", 4))
}

// A window's last blocks may be in the store that a rank shares, or in part; where the
// store alone tells of a window, the rank needs it, too.
func TestWindowsOfASharedStore(t *testing.T) {
	d := newTold(t, Options{})
	byHash := func(group int, kind string, hashes ...kvevents.Hash) *kvevents.BlockStored {
		return ofKind(group, kind, 6, &kvevents.BlockStored{Hashes: hashes, Medium: "CPU"})
	}
	inStore := func(gpu, cpu int) Match {
		return Match{Instance: "a", In: [tiers]int{gpu, cpu, 0}, Through: [tiers]int{gpu, max(gpu, cpu), max(gpu, cpu)}}
	}
	rank, store := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "a", Rank: Shared})
	apply(rank, ofGroup(0, blocks("GPU", 0, 1, 2, 3)), ofKind(1, "sliding_window", 6, blocks("GPU", 0, 1, 2)))
	apply(store, byHash(0, "full_attention", 1, 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, Match{Instance: "a", In: [tiers]int{8, 0, 0}, Through: [tiers]int{8, 8, 8}})
	apply(store, byHash(1, "sliding_window", 3)) // its last two are in both together
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, Match{Instance: "a", In: [tiers]int{8, 0, 0}, Through: [tiers]int{8, 12, 12}})
	apply(store, byHash(1, "sliding_window", 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, inStore(8, 12))
	apply(store, byHash(2, "mamba", 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, Match{Instance: "a", In: [tiers]int{0, 0, 0}, Through: [tiers]int{0, 4, 4}})
}
