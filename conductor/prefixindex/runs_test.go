package prefixindex

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// cells is how many records have one by their digest.
func (s *space) cells() (n int) {
	for _, seg := range s.tables[byChain].segments() {
		n += int(seg.used)
	}
	return n
}

// What an engine tells of in one go is a run with one cell, also over several events,
// where nobody else comes between.
func TestARunHasOneCell(t *testing.T) {
	d := newTold(t, Options{})
	a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
	apply(a, blocks("GPU", 0, 1, 2, 3), blocks("GPU", 3, 4, 5))
	if n := a.space.cells(); n != 1 {
		t.Errorf("%d cells", n)
	}
	apply(b, blocks("GPU", 3, 7, 8)) // branches off
	if n := a.space.cells(); n != 2 {
		t.Errorf("%d cells", n)
	}
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4, 5)}, onGPU("a", 20))
	apply(b, blocks("GPU", 0, 1, 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 7, 8)}, onGPU("a", 12), onGPU("b", 20))
}

// Whatever of a run goes first, what is left is found, and is found again behind what
// comes back.
func TestARunThatIsTakenApart(t *testing.T) {
	all := []kvevents.Hash{1, 2, 3, 4, 5, 6}
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		d := newTold(t, Options{})
		a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
		apply(a, blocks("GPU", 0, all...))
		order := random.Perm(len(all))
		for n, i := range order {
			apply(a, gone("GPU", all[i]))
			if err := d.x.check(); err != nil {
				t.Fatal(order[:n+1], err)
			}
			first := slices.Min(order[:n+1])
			if want := []Match{onGPU("a", 4*first)}; first > 0 {
				d.expect(Query{Tokens: tokensOf(all...), Instance: "a"}, want...)
			}
			if n == 3 {
				apply(b, blocks("GPU", 0, all...)) // in the places that were left, and in others
				d.expect(Query{Tokens: tokensOf(all...), Instance: "b"}, onGPU("b", 24))
			}
		}
		d.expect(Query{Tokens: tokensOf(all...)}, onGPU("b", 24))
	}
}

// Engines with hashes of their own hold the same blocks: of each run the part that both
// have is found for both, whoever told of it first.
func TestRunsOfTwins(t *testing.T) {
	named := func(offset, parent kvevents.Hash, hashes ...kvevents.Hash) *kvevents.BlockStored {
		e := blocks("GPU", parent, hashes...)
		for i := range e.Hashes {
			e.Hashes[i] += offset
		}
		if e.Parent != nil {
			*e.Parent += offset
		}
		return e
	}
	d := newTold(t, Options{})
	a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
	apply(a, named(0, 0, 1, 2, 3, 4))
	apply(b, named(100, 0, 1, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 16), onGPU("b", 8))
	apply(b, named(100, 2, 3), named(100, 3, 9))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 16), onGPU("b", 12))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 9)}, onGPU("a", 12), onGPU("b", 16))
	apply(a, gone("GPU", 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 4), onGPU("b", 12))
	apply(a, named(0, 1, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 16), onGPU("b", 12))
}

// A run whose first block goes when there is no memory for a cell is known by its hashes
// only, and its holder is marked; told of anew, it is found.
func TestARunWithoutMemoryForACell(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	var many []kvevents.Hash
	for i := range kvevents.Hash(2000) {
		many = append(many, 1_000_000+i)
	}
	// There are records, and cells for hashes.
	apply(a, &kvevents.BlockStored{Hashes: many, Medium: "GPU"}, gone("GPU", many...))
	s := a.space
	run := []kvevents.Hash{1, 2, 3, 4}
	apply(a, blocks("GPU", 0, run...))
	b := d.open(Origin{Instance: "b"})
	apply(b, &kvevents.BlockStored{Hashes: []kvevents.Hash{3}, Medium: "GPU"})
	s.budget.max = d.x.Bytes()
	others := kvevents.Hash(0)
	for next := kvevents.Hash(10); others < 200; next++ {
		apply(a, blocks("GPU", 0, next))
		others++
	}
	if a.Stats().Dropped == 0 {
		t.Fatal("there is memory")
	}
	held := func(tokens int) Match {
		return Match{Instance: "a", In: [tiers]int{tokens}, Through: [tiers]int{tokens, tokens, tokens}, Truncated: true}
	}
	d.expect(Query{Tokens: tokensOf(run...), Instance: "a"}, held(16))
	apply(a, gone("GPU", 2))
	if err := d.x.check(); err != nil {
		t.Fatal(err)
	}
	d.expect(Query{Tokens: tokensOf(run...), Instance: "a"}, held(4))
	d.expect(Query{Hashes: run[2:], Instance: "a"}, held(8))
	d.expect(Query{Tokens: tokensOf(run...), Instance: "b"}, Match{Instance: "b", Truncated: true})
	s.budget.max = 0
	apply(a, blocks("GPU", 1, 2))
	d.expect(Query{Tokens: tokensOf(run...), Instance: "a"}, held(8))
	apply(a, gone("GPU", 4, 3, 2), blocks("GPU", 0, run...))
	d.expect(Query{Tokens: tokensOf(run...), Instance: "a"}, held(16))
}

// Blocks of more sizes than there are numbers for are known by their hashes.
func TestSizesAreBounded(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	for size := 1; size <= 100; size++ {
		apply(a, &kvevents.BlockStored{Hashes: []kvevents.Hash{kvevents.Hash(size)}, BlockSize: size, TokenIDs: make([]uint32, size), Medium: "GPU"})
	}
	for size, want := range map[int]int{1: 1, 63: 63, 64: 0, 100: 0} {
		q := Query{Model: "m", BlockTokens: size, Tokens: make([]byte, 4*size)}
		held := 0
		for _, m := range d.x.Query(&q, nil) {
			held = m.In[GPU]
		}
		if held != want {
			t.Errorf("%d of %d tokens", held, size)
		}
		q.Tokens, q.Hashes = nil, []kvevents.Hash{kvevents.Hash(size)}
		if got := d.x.Query(&q, nil); len(got) != 1 || got[0].In[GPU] != size {
			t.Errorf("%d: %+v", size, got)
		}
	}
	if s := a.Stats(); s.Unplaced != 100-uint64(sizeOf) {
		t.Errorf("%+v", s)
	}
}

// churn has an engine of so many blocks tell of prompts for long, and evict others in
// some order; it returns the index's bytes for a block.
func churn(t *testing.T, evict func(random *rand.Rand, held [][]kvevents.Hash) []kvevents.Hash) float64 {
	t.Helper()
	const most = 20_000
	random := rand.New(rand.NewPCG(1, 2))
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	next, known := kvevents.Hash(1), 0
	var held [][]kvevents.Hash // prompts
	for range 4000 {
		var prompt []kvevents.Hash
		for range 1 + random.IntN(100) {
			prompt = append(prompt, next)
			next++
		}
		held = append(held, prompt)
		known += len(prompt)
		apply(a, blocks("GPU", 0, prompt...))
		for known > most {
			going := evict(random, held)
			apply(a, gone("GPU", going...))
			known -= len(going)
			held = slices.DeleteFunc(held, func(p []kvevents.Hash) bool { return len(p) == 0 })
		}
	}
	if blocks := d.x.Blocks(); int(blocks) != known {
		t.Fatalf("%d blocks, not %d", blocks, known)
	}
	return float64(d.x.Bytes()-spaceBytes-slotBytes-laneBytes) / float64(most)
}

// However blocks are evicted, memory does not grow without an end: at worst each has a cell
// for its hash and one for its digest.
func TestChurn(t *testing.T) {
	for name, c := range map[string]struct {
		evict func(*rand.Rand, [][]kvevents.Hash) []kvevents.Hash
		most  float64
	}{
		"oldest prompts, last blocks first": {func(_ *rand.Rand, held [][]kvevents.Hash) []kvevents.Hash {
			going := slices.Clone(held[0])
			slices.Reverse(going)
			held[0] = nil
			return going
		}, 36},
		"last blocks of any": {func(random *rand.Rand, held [][]kvevents.Hash) []kvevents.Hash {
			p := &held[random.IntN(len(held))]
			going := []kvevents.Hash{(*p)[len(*p)-1]}
			*p = (*p)[:len(*p)-1]
			return going
		}, 50},
		"any": {func(random *rand.Rand, held [][]kvevents.Hash) []kvevents.Hash {
			p := &held[random.IntN(len(held))]
			i := random.IntN(len(*p))
			going := []kvevents.Hash{(*p)[i]}
			*p = slices.Delete(*p, i, i+1)
			return going
		}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			each := churn(t, c.evict)
			t.Logf("%.1f bytes a block", each)
			if each > c.most {
				t.Errorf("%v bytes a block", each)
			}
		})
	}
}
