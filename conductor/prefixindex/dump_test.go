package prefixindex

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// dumped is an index with engines and a store that have told random things.
type dumped struct {
	x       *Index
	sources []Saved
}

var dumpedOrigins = []Origin{
	{Model: "m", Instance: "a"},
	{Model: "m", Instance: "a", Rank: 1, ReusesReported: true},
	{Model: "m", Instance: "a", Rank: Shared},
	{Model: "m", Instance: "all", Rank: Shared, Everyone: true},
	{Tenant: "t", Model: "other", Salt: "fp8", LoRA: "l", Instance: "b"},
}

func newDumped(opts Options) *dumped {
	d := &dumped{x: New(opts)}
	for i, origin := range dumpedOrigins {
		d.sources = append(d.sources, Saved{d.x.Open(origin), []byte(fmt.Sprint("tag ", i))})
	}
	return d
}

// tell tells the same of the same random numbers.
func (d *dumped) tell(seed uint64, random *rand.Rand, batches int) {
	media := []string{"GPU", "cpu", "STORAGE"}
	for range batches {
		src, first := d.sources[random.IntN(len(d.sources))].Source, kvevents.Hash(1+random.IntN(400))
		medium := media[random.IntN(len(media))]
		switch random.IntN(8) {
		case 0:
			apply(src, gone(medium, first, first+1))
		case 1:
			if random.IntN(20) == 0 {
				apply(src, &kvevents.AllBlocksCleared{})
			}
		case 2:
			if seed < 10 {
				continue // without windows more is held
			}
			window, group := blocks(medium, 0, 1, 2, first), 1
			window.Group, window.SpecKind, window.Window = &group, "sliding_window", 5
			apply(src, window)
		case 3:
			apply(src, &kvevents.BlockStored{Hashes: []kvevents.Hash{first}, Medium: medium}) // of an unknown place
		default:
			apply(src, blocks(medium, 0, 1, 2), blocks(medium, 2, first, first+1))
		}
	}
}

// answers are those to some prompts, in their order.
func (d *dumped) answers() string {
	var b strings.Builder
	for i := range kvevents.Hash(402) {
		for _, key := range dumpedOrigins[3:] {
			q := Query{Tenant: key.Tenant, Model: key.Model, LoRA: key.LoRA, EngineSalt: key.Salt, BlockTokens: 4, Tokens: tokensOf(1, 2, i, i+1)}
			byTokens := d.x.Query(&q, nil)
			q.Hashes = []kvevents.Hash{i}
			for _, found := range [][]Match{byTokens, d.x.Query(&q, nil)} {
				slices.SortFunc(found, func(a, b Match) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
				fmt.Fprintln(&b, i, found)
			}
		}
	}
	return b.String()
}

func firstDifference(a, b string) string {
	one, other := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(one), len(other)) {
		if one[i] != other[i] {
			return one[i] + " is " + other[i]
		}
	}
	return "none"
}

func (d *dumped) dump(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := d.x.Dump(&b, d.sources); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restored(t *testing.T, opts Options, dump []byte) *dumped {
	t.Helper()
	d := &dumped{x: New(opts)}
	n := 0
	var err error
	d.sources, err = d.x.Restore(bytes.NewReader(dump), func(origin Origin, tag []byte) bool {
		if want := fmt.Sprint("tag ", n); string(tag) != want || origin.Tenant == "" {
			t.Errorf("%+v, %q, not %q", origin, tag, want)
		}
		n++
		return true
	})
	if err != nil || len(d.sources) != len(dumpedOrigins) {
		t.Fatal(len(d.sources), err)
	}
	return d
}

// What was restored answers as what was dumped, and goes on as it does.
func TestDump(t *testing.T) {
	hits := 0
	for seed := range uint64(20) {
		opts := Options{Seed: seed}
		was := newDumped(opts)
		was.tell(seed, rand.New(rand.NewPCG(seed, 1)), 600)
		now := restored(t, opts, was.dump(t))
		for round := range 2 {
			a, b := was.answers(), now.answers()
			if a != b {
				t.Fatalf("seed %d, round %d: %s", seed, round, firstDifference(a, b))
			}
			hits += strings.Count(a, "{a ")
			if err := now.x.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			was.tell(seed, rand.New(rand.NewPCG(seed, 2)), 600)
			now.tell(seed, rand.New(rand.NewPCG(seed, 2)), 600)
		}
		for _, saved := range now.sources {
			saved.Source.Close()
		}
		if now.x.Bytes() != 0 {
			t.Errorf("%d bytes are left", now.x.Bytes())
		}
	}
	if hits < 1000 {
		t.Errorf("%d hits", hits)
	}
}

// Sources that nobody wants are left out, with what only they held.
func TestRestoreOfSome(t *testing.T) {
	was := newDumped(Options{})
	apply(was.sources[0].Source, blocks("GPU", 0, 1))
	apply(was.sources[1].Source, blocks("GPU", 0, 1, 2))
	apply(was.sources[4].Source, blocks("GPU", 0, 1, 2))
	x := New(Options{})
	sources, err := x.Restore(bytes.NewReader(was.dump(t)), func(origin Origin, _ []byte) bool { return origin.Instance == "a" && origin.Rank == 0 })
	if err != nil || len(sources) != 1 || x.Blocks() != 1 || len(x.spaces) != 1 {
		t.Fatalf("%d sources, %v, %d blocks", len(sources), err, x.Blocks())
	}
	if got := x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(1, 2)}, nil); !slices.Equal(got, []Match{onGPU("a", 4)}) {
		t.Error(got)
	}
}

// Without memory for all, what is missing is marked.
func TestRestoreWithLessMemory(t *testing.T) {
	was := newDumped(Options{})
	for i := kvevents.Hash(1); i < 10_000; i += 2 {
		apply(was.sources[0].Source, blocks("GPU", 0, i, i+1))
	}
	now := restored(t, Options{MaxBytes: 200_000}, was.dump(t))
	if err := now.x.check(); err != nil || now.x.Bytes() > 200_000+2*spaceBytes {
		t.Error(err, now.x.Bytes())
	}
	matches := now.x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(9_999, 1), Instance: "a"}, nil)
	if len(matches) == 0 || !matches[0].Truncated {
		t.Errorf("%+v", matches)
	}
}

// What can't be restored is not written; a source with too many groups is still one.
func TestWhatCantBeRestored(t *testing.T) {
	was := newDumped(Options{})
	for group := range maxGroups + 1 {
		apply(was.sources[0].Source, ofKind(group, "sliding_window", 1<<40, blocks("GPU", 0, 1)))
	}
	apply(was.sources[0].Source, ofGroup(0, blocks("GPU", 0, 1)))
	now := restored(t, Options{}, was.dump(t))
	if a, b := was.answers(), now.answers(); a != b {
		t.Error(firstDifference(a, b))
	}
	if !now.sources[0].Source.space.slots[now.sources[0].Source.slot].crowded {
		t.Error("it has all groups")
	}
	was.sources[0].Tag = make([]byte, maxDumpTag+1)
	if err := was.x.Dump(&bytes.Buffer{}, was.sources); err == nil {
		t.Error("it can't be read again")
	}
}

func TestDamagedDump(t *testing.T) {
	was := newDumped(Options{})
	was.tell(1, rand.New(rand.NewPCG(1, 1)), 50)
	dump := was.dump(t)
	for _, damage := range []func() []byte{
		func() []byte { return nil },
		func() []byte { return dump[:len(dump)-1] },
		func() []byte { return dump[:len(dump)/2] },
		func() []byte { d := slices.Clone(dump); d[len(d)/2] ^= 4; return d },
		func() []byte { d := slices.Clone(dump); d[len(d)-1] ^= 4; return d },
	} {
		x := New(Options{})
		sources, err := x.Restore(bytes.NewReader(damage()), func(Origin, []byte) bool { return true })
		if !errors.Is(err, ErrDump) {
			t.Errorf("%v", err)
		}
		for _, saved := range sources {
			saved.Source.Close()
		}
		if x.Bytes() != 0 {
			t.Errorf("%d bytes are left", x.Bytes())
		}
	}
}

// The first version had none: it began with a space, or with the end.
func TestDumpOfAnotherVersion(t *testing.T) {
	was := newDumped(Options{})
	was.tell(1, rand.New(rand.NewPCG(1, 1)), 50)
	dump := was.dump(t)
	for _, other := range [][]byte{dump[len(dumpVersion):], append([]byte("idx3"), dump[len(dumpVersion):]...), make([]byte, 9)} {
		sources, err := New(Options{}).Restore(bytes.NewReader(other), func(Origin, []byte) bool { return true })
		if !errors.Is(err, ErrDump) || !strings.Contains(err.Error(), "version") || len(sources) > 0 {
			t.Errorf("%d sources, %v", len(sources), err)
		}
	}
}

// What was a run is one again, and takes as little; without its first block it is the
// rest of one.
func TestDumpOfRuns(t *testing.T) {
	was := newDumped(Options{})
	for _, saved := range was.sources[:2] {
		for i := kvevents.Hash(1); i < 1000; i += 10 {
			apply(saved.Source, blocks("GPU", 0, i, i+1, i+2, i+3, i+4))
		}
	}
	now := restored(t, Options{}, was.dump(t))
	if before, after := was.sources[0].Source.space.cells(), now.sources[0].Source.space.cells(); before != 100 || after != 100 {
		t.Errorf("%d cells were %d", after, before)
	}
	apply(was.sources[1].Source, gone("GPU", 1, 2, 3))
	apply(was.sources[0].Source, gone("GPU", 1))
	var b bytes.Buffer
	if err := was.x.Dump(&b, was.sources[:1]); err != nil {
		t.Fatal(err)
	}
	x := New(Options{})
	sources, err := x.Restore(&b, func(Origin, []byte) bool { return true })
	if err != nil || len(sources) != 1 {
		t.Fatal(len(sources), err)
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
	apply(sources[0].Source, blocks("GPU", 0, 1))
	q := Query{Tenant: was.sources[0].Source.space.key.tenant, Model: was.sources[0].Source.space.key.model, BlockTokens: 4, Tokens: tokensOf(1, 2, 3, 4, 5, 6)}
	if got := x.Query(&q, nil); len(got) != 1 || got[0].In[GPU] != 20 {
		t.Errorf("%+v", got)
	}
}

func FuzzRestore(f *testing.F) {
	was := newDumped(Options{})
	was.tell(1, rand.New(rand.NewPCG(1, 1)), 10)
	var b bytes.Buffer
	if err := was.x.Dump(&b, was.sources); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		x := New(Options{MaxBytes: 1 << 22})
		sources, _ := x.Restore(bytes.NewReader(data), func(_ Origin, tag []byte) bool { return len(tag)%2 == 1 })
		for _, saved := range sources {
			apply(saved.Source, blocks("GPU", 0, 1, 2), gone("GPU", 1))
		}
		x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(1, 2)}, nil)
		for _, saved := range sources {
			saved.Source.Close()
		}
		if x.Bytes() != 0 {
			t.Errorf("%d bytes are left", x.Bytes())
		}
	})
}
