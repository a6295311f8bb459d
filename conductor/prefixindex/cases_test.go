package prefixindex

import (
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// told is an index with one engine, in the words of the tests below.
type told struct {
	t *testing.T
	x *Index
}

func newTold(t *testing.T, opts Options) *told {
	t.Helper()
	d := &told{t, New(opts)}
	t.Cleanup(func() {
		if err := d.x.check(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *told) open(origin Origin) *Source {
	origin.Model = "m"
	return d.x.Open(origin)
}

func apply(src *Source, events ...kvevents.Event) { src.Apply(&kvevents.Batch{Events: events}) }

// blocks tells of blocks of four tokens, named as they come: hash 10 has tokens 40 to
// 43, whatever is before it.
func blocks(medium string, parent kvevents.Hash, hashes ...kvevents.Hash) *kvevents.BlockStored {
	e := &kvevents.BlockStored{Hashes: hashes, BlockSize: 4, Medium: medium}
	if parent != 0 {
		e.Parent = &parent
	}
	for _, hash := range hashes {
		for i := range uint32(4) {
			e.TokenIDs = append(e.TokenIDs, uint32(hash)*4+i)
		}
	}
	return e
}

func gone(medium string, hashes ...kvevents.Hash) *kvevents.BlockRemoved {
	return &kvevents.BlockRemoved{Hashes: hashes, Medium: medium}
}

func tokensOf(hashes ...kvevents.Hash) []byte { return littleEndian(blocks("", 0, hashes...).TokenIDs) }

// expect asks for a prompt of those blocks.
func (d *told) expect(q Query, want ...Match) {
	d.t.Helper()
	q.Model, q.BlockTokens = "m", 4
	if got := sorted(d.x.Query(&q, nil)); !slices.Equal(got, want) {
		d.t.Errorf("%+v\nwant %+v", got, want)
	}
}

// onGPU is a match of so many tokens on the GPU and nowhere else.
func onGPU(instance string, tokens int) Match {
	return Match{Instance: instance, In: [tiers]int{tokens, 0, 0}, Through: [tiers]int{tokens, tokens, tokens}}
}

// vLLM tells of each copy that it removes; of two copies one is left.
func TestACopyIsRemovedAndOneIsLeft(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("GPU", 0, 1, 2, 3))
	apply(a, blocks("GPU", 0, 1, 2, 3))
	apply(a, gone("GPU", 2, 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 12))
	apply(a, gone("GPU", 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 4))
	apply(a, gone("GPU", 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)})
	if s := a.Stats(); s.Again != 3 || s.Stored != 6 || s.Removed != 4 || s.Unknown != 0 {
		t.Errorf("%+v", s)
	}
}

// An engine that tells of reuse has one copy, however often it does.
func TestReuseIsNoCopy(t *testing.T) {
	for name, reported := range map[string]bool{"as registered": true, "found out": false} {
		t.Run(name, func(t *testing.T) {
			d := newTold(t, Options{})
			a := d.open(Origin{Instance: "a", ReusesReported: reported})
			apply(a, blocks("GPU", 0, 1, 2))
			for next := kvevents.Hash(3); next < 6; next++ {
				apply(a, blocks("GPU", 0, 1, 2), blocks("GPU", 2, next))
			}
			apply(a, gone("GPU", 3), gone("GPU", 2))
			d.expect(Query{Tokens: tokensOf(1, 2, 4)}, onGPU("a", 4))
			if s := a.Stats(); s.Reported != 6 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func withExtra(e *kvevents.BlockStored, lora, salt string) *kvevents.BlockStored {
	e.LoraName = lora
	e.HasExtraKeys, e.ExtraKeys = true, extraKeys(prompt{lora: lora, salt: salt}, 0, len(e.Hashes))
	return e
}

// Prompts with a salt, an adapter or an image are found by who has the same, and by
// nobody else; what the wire calls none of these by name.
func TestWhatIsNotTokensKeepsApart(t *testing.T) {
	d := newTold(t, Options{})
	apply(d.open(Origin{Instance: "plain"}), blocks("GPU", 0, 1, 2))
	apply(d.open(Origin{Instance: "salted"}), withExtra(blocks("GPU", 0, 1, 2), "", "s"))
	apply(d.open(Origin{Instance: "adapted"}), withExtra(blocks("GPU", 0, 1, 2), "l", ""))
	apply(d.open(Origin{Instance: "both"}), withExtra(blocks("GPU", 0, 1, 2), "l", "s"))
	apply(d.open(Origin{Instance: "quantised", Salt: "w8a8"}), blocks("GPU", 0, 1, 2))
	image := blocks("GPU", 0, 1, 2)
	image.HasExtraKeys, image.ExtraKeys = true, []byte("\x92\xc0\x91\x92\xa3img\x02")
	apply(d.open(Origin{Instance: "image"}), image)
	other := d.open(Origin{Tenant: "t", Instance: "tenant"})
	apply(other, blocks("GPU", 0, 1, 2))
	foreign := blocks("GPU", 0, 1, 2)
	foreign.Tenant = "u"
	apply(other, foreign)

	prompt := tokensOf(1, 2)
	d.expect(Query{Tokens: prompt}, onGPU("image", 4), onGPU("plain", 8))
	d.expect(Query{Tokens: prompt, Salt: "s"}, onGPU("salted", 8))
	d.expect(Query{Tokens: prompt, LoRA: "l"}, onGPU("adapted", 8))
	d.expect(Query{Tokens: prompt, LoRA: "l", Salt: "s"}, onGPU("both", 8))
	d.expect(Query{Tokens: prompt, EngineSalt: "w8a8"}, onGPU("quantised", 8))
	d.expect(Query{Tokens: prompt, Tenant: "t"}, onGPU("tenant", 8))
	d.expect(Query{Tokens: prompt, Tenant: "u"})
	d.expect(Query{Tokens: prompt, Salt: "l"})
	if s := other.Stats(); s.Ignored != 2 {
		t.Errorf("%+v", s)
	}
}

// Media in any case, and no unknown one for the GPU.
func TestTiersFollowEachOther(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("gpu", 0, 1), blocks("CPU", 1, 2, 3), blocks("STORAGE", 3, 4), blocks("GPU", 4, 5), blocks("tape", 0, 1, 2, 3, 4, 5))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4, 5)}, Match{Instance: "a", In: [tiers]int{4, 0, 0}, Through: [tiers]int{4, 12, 16}})
	apply(a, gone("cpu", 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4, 5)}, onGPU("a", 4))
	if s := a.Stats(); s.Ignored != 5 {
		t.Errorf("%+v", s)
	}
}

// A store tells of hashes only, before or after an engine has said what they are. All
// ranks of its instance have it, and no other instance.
func TestAStoreIsShared(t *testing.T) {
	d := newTold(t, Options{})
	store := d.open(Origin{Instance: "a", Rank: Shared})
	byHash := func(hashes ...kvevents.Hash) *kvevents.BlockStored {
		return &kvevents.BlockStored{Hashes: hashes, Medium: "CPU"}
	}
	apply(store, byHash(1, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)})
	first, second, other := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "a", Rank: 1}), d.open(Origin{Instance: "b"})
	apply(other, blocks("GPU", 0, 1, 2, 3))
	apply(store, byHash(3))
	apply(first, blocks("GPU", 0, 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)},
		Match{Instance: "a", In: [tiers]int{4, 12, 0}, Through: [tiers]int{4, 12, 12}},
		Match{Instance: "a", Rank: 1, In: [tiers]int{0, 12, 0}, Through: [tiers]int{0, 12, 12}}, onGPU("b", 12))
	d.expect(Query{Hashes: []kvevents.Hash{1, 2, 3, 9}, Instance: "b"}, onGPU("b", 12))
	first.Close()
	second.Close()
	d.expect(Query{Tokens: tokensOf(1, 2, 3), Instance: "a"}, Match{Instance: "a", Rank: Shared, In: [tiers]int{0, 12, 0}, Through: [tiers]int{0, 12, 12}})
}

// What comes behind a block that was never told of is found once somebody tells of it.
func TestAnUnknownParent(t *testing.T) {
	d := newTold(t, Options{})
	late, whole := d.open(Origin{Instance: "late"}), d.open(Origin{Instance: "whole"})
	apply(late, blocks("GPU", 0, 1), blocks("GPU", 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("late", 4))
	apply(whole, blocks("GPU", 0, 1, 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("late", 4), onGPU("whole", 12))
	apply(late, blocks("GPU", 1, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("late", 12), onGPU("whole", 12))
	if s := late.Stats(); s.Unplaced != 1 {
		t.Errorf("%+v", s)
	}
}

// Of two groups both must have a prefix; of a window its last blocks, which vLLM's GPU
// events show by leaving blocks out.
func TestGroups(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	of := func(group int, e *kvevents.BlockStored) *kvevents.BlockStored { e.Group = &group; return e }
	apply(a, of(0, blocks("GPU", 0, 1, 2, 3, 4)))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 16))
	apply(a, of(1, blocks("GPU", 0, 1, 2)))
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 8))
	sparse := of(1, blocks("GPU", 0, 1, 2, 3, 4))
	sparse.Hashes = []kvevents.Hash{3}
	apply(a, sparse) // it is a window, then, and has 1, 2 and 3
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 12))
	apply(a, &kvevents.BlockRemoved{Hashes: []kvevents.Hash{1, 3}, Medium: "GPU", Group: sparse.Group})
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}, onGPU("a", 8))
	named := of(2, blocks("GPU", 0, 1))
	named.SpecKind, named.Window = "sliding_window", 9
	apply(a, named)
	d.expect(Query{Tokens: tokensOf(1, 2, 3, 4)}) // it needs 2, too, behind 2
}

// Clearing is at once, and what is cleared gives its memory back.
func TestClearedIsGone(t *testing.T) {
	d := newTold(t, Options{})
	a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
	for i := kvevents.Hash(1); i < 3000; i += 3 {
		apply(a, blocks("GPU", 0, i, i+1, i+2))
		apply(b, blocks("GPU", 0, i))
	}
	apply(a, &kvevents.AllBlocksCleared{})
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("b", 4))
	apply(a, blocks("GPU", 1, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("b", 4))
	for d.x.Sweep(1) {
	}
	if used := d.x.spaces[keyOf("", "m", "", "")].records.used; used != 1001 {
		t.Errorf("%d records", used)
	}
	b.Close()
	for d.x.Sweep(100) {
	}
	if used := d.x.Blocks(); used != 1 {
		t.Errorf("%d records", used)
	}
	if held := d.x.Bytes(); held == 0 {
		t.Errorf("%d bytes", held)
	}
	a.Close()
	if len(d.x.spaces) != 0 || d.x.Bytes() != 0 || d.x.Blocks() != 0 {
		t.Errorf("%d spaces, %d bytes are left", len(d.x.spaces), d.x.Bytes())
	}
	apply(d.open(Origin{Instance: "a"}), blocks("GPU", 0, 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 4))
}

// What a cluster's store has, engines of all instances can load, also those that come later
// and those that have a store of their own. Alone it answers for itself.
func TestStoreOfAll(t *testing.T) {
	d := newTold(t, Options{})
	cluster := d.open(Origin{Instance: "cluster", Rank: Shared, Everyone: true})
	apply(cluster, blocks("cpu", 0, 1, 2))
	inStore := func(instance string, rank, gpu, tokens int) Match {
		return Match{Instance: instance, Rank: rank, In: [tiers]int{gpu, tokens}, Through: [tiers]int{gpu, tokens, tokens}}
	}
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, inStore("cluster", Shared, 0, 8))
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("GPU", 0, 1))
	d.open(Origin{Instance: "b", Rank: 1})
	own := d.open(Origin{Instance: "b", Rank: Shared})
	apply(own, blocks("cpu", 0, 1, 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, inStore("a", 0, 4, 8), inStore("b", 1, 0, 12))
	a.Close()
	own.Close()
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, inStore("b", 1, 0, 8))
	cluster.Close()
	d.expect(Query{Tokens: tokensOf(1, 2, 3)})
}

// Without memory for more, what was dropped is marked, and what is known stays right.
func TestBoundedMemory(t *testing.T) {
	d := newTold(t, Options{MaxBytes: 100_000})
	a := d.open(Origin{Instance: "a"})
	for i := kvevents.Hash(1); i < 10_000; i += 2 {
		apply(a, blocks("GPU", 0, i, i+1))
	}
	want := onGPU("a", 8)
	want.Truncated = true
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, want)
	s := a.Stats()
	if s.Dropped == 0 || s.Dropped+s.Stored != 10_000 || d.x.budget.bytes.Load() > 100_000 {
		t.Errorf("%+v, %d bytes", s, d.x.budget.bytes.Load())
	}
	for i := kvevents.Hash(1); i <= 10_000; i++ {
		apply(a, gone("GPU", i))
	}
	if now := a.Stats(); now.Removed != s.Stored || now.Unknown != s.Dropped {
		t.Errorf("%+v", now)
	}
}

// A size that can be no block's finds nothing, however its bytes are counted.
func TestImpossibleBlocks(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("GPU", 0, 1, 2), &kvevents.BlockStored{Hashes: []kvevents.Hash{3, 4}, Medium: "GPU"})
	for _, size := range []int{-1, 0, maxBlockTokens + 1, 1 << 61, 1<<62 + 4, 1<<63 - 1} {
		for _, q := range []Query{{Tokens: tokensOf(1, 2)}, {Hashes: []kvevents.Hash{3, 4}}} {
			q.Model, q.BlockTokens = "m", size
			if got := d.x.Query(&q, nil); len(got) > 0 {
				t.Errorf("blocks of %d: %+v", size, got)
			}
		}
	}
}

// Behind an event that nobody can read, and that may have taken blocks back, only what
// comes after it is held.
func TestDoubtClears(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("GPU", 0, 1, 2))
	a.Apply(&kvevents.Batch{Doubtful: true, Events: []kvevents.Event{blocks("GPU", 0, 3)}})
	d.expect(Query{Tokens: tokensOf(1, 2)})
	d.expect(Query{Tokens: tokensOf(3)}, onGPU("a", 4))
}

// Where one hash is of several blocks, nobody's is taken for another's.
func TestOneHashOfSeveralBlocks(t *testing.T) {
	d := newTold(t, Options{})
	a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
	apply(a, blocks("GPU", 0, 1, 3, 4))
	apply(b, blocks("GPU", 0, 2, 3))
	late := d.open(Origin{Instance: "late"})
	apply(late, blocks("GPU", 3, 4)) // behind either 3
	apply(late, blocks("GPU", 0, 1), &kvevents.BlockStored{Hashes: []kvevents.Hash{3}, Medium: "GPU"})
	d.expect(Query{Tokens: tokensOf(1, 3, 4)}, onGPU("a", 12), onGPU("late", 4))
	d.expect(Query{Tokens: tokensOf(2, 3, 4)}, onGPU("b", 8))
	d.expect(Query{Hashes: []kvevents.Hash{3, 4}}, onGPU("a", 8), onGPU("b", 4), onGPU("late", 8))
	apply(a, blocks("GPU", 0, 2, 3), blocks("GPU", 3, 5)) // behind either of its own
	d.expect(Query{Tokens: tokensOf(1, 3, 5), Instance: "a"}, onGPU("a", 8))
	d.expect(Query{Tokens: tokensOf(2, 3, 5), Instance: "a"}, onGPU("a", 8))
	apply(late, blocks("GPU", 0, 9, 3)) // it is not what was told of by hash
	d.expect(Query{Tokens: tokensOf(9, 3)}, onGPU("late", 8))
	apply(late, gone("GPU", 3))
	d.expect(Query{Hashes: []kvevents.Hash{3}}, onGPU("a", 4), onGPU("b", 4))
}

// A rank whose first block found no room is told of: nothing is known, and there may be.
func TestAFirstBlockThatWasDropped(t *testing.T) {
	d := newTold(t, Options{MaxBytes: 100_000})
	a := d.open(Origin{Instance: "a"})
	for i := kvevents.Hash(1); a.Stats().Dropped == 0; i++ {
		apply(a, blocks("GPU", 0, i))
	}
	want := onGPU("a", 0)
	want.Truncated = true
	d.expect(Query{Tokens: tokensOf(1_000_000)}, want)
	a.Clear()
	d.expect(Query{Tokens: tokensOf(1_000_000)})
}

// A slot that is another's while a query goes on in parts is no answer.
func TestASlotThatIsAnothersMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*told, *Source){
		"closed":  func(d *told, a *Source) { a.Close(); apply(d.open(Origin{Instance: "b"}), blocks("GPU", 1, 2)) },
		"cleared": func(_ *told, a *Source) { a.Clear() },
	} {
		d := newTold(t, Options{})
		a := d.open(Origin{Instance: "a"})
		apply(a, blocks("GPU", 0, 1, 2))
		w := &walk{q: &Query{Model: "m", BlockTokens: 4}}
		w.begin()
		a.space.findHashes([]kvevents.Hash{1}, 4, &w.found)
		if !w.visit(a.space) {
			t.Fatal("nobody has the first block")
		}
		change(d, a)
		a.space.findHashes([]kvevents.Hash{2}, 4, &w.found)
		goesOn := w.visit(a.space)
		if got := w.matches(a.space, nil); goesOn || len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Of two stores of an instance both count.
func TestTwoStoresOfAnInstance(t *testing.T) {
	d := newTold(t, Options{})
	one, two := d.open(Origin{Instance: "a", Rank: Shared}), d.open(Origin{Instance: "a", Rank: Shared})
	apply(d.open(Origin{Instance: "b"}), blocks("GPU", 0, 1, 2, 3))
	apply(one, &kvevents.BlockStored{Hashes: []kvevents.Hash{1, 2}, Medium: "CPU"})
	apply(two, &kvevents.BlockStored{Hashes: []kvevents.Hash{3}, Medium: "DISK"})
	shared := Match{Instance: "a", Rank: Shared, In: [tiers]int{0, 8, 0}, Through: [tiers]int{0, 8, 12}}
	d.expect(Query{Tokens: tokensOf(1, 2, 3), Instance: "a"}, shared)
	rank := d.open(Origin{Instance: "a"})
	shared.Rank = 0
	d.expect(Query{Tokens: tokensOf(1, 2, 3), Instance: "a"}, shared)
	rank.Close()
	one.Close()
	apply(two, &kvevents.BlockStored{Hashes: []kvevents.Hash{1}, Medium: "DISK"})
	d.expect(Query{Tokens: tokensOf(1, 2, 3), Instance: "a"}, Match{Instance: "a", Rank: Shared, In: [tiers]int{0, 0, 4}, Through: [tiers]int{0, 0, 4}})
}
