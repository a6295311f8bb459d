package coordinator_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

func present(int, int) kv.Existence { return kv.Present }

func TestNewRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*coordinator.Config)
		want   string
	}{
		"unknown kind":       {func(c *coordinator.Config) { c.Groups[0].Kind = "circular_buffer" }, `"circular_buffer" is not known`},
		"no groups":          {func(c *coordinator.Config) { c.Groups = nil }, "0 KV-cache groups"},
		"too many groups":    {func(c *coordinator.Config) { c.Groups = make([]kv.GroupSpec, 65) }, "65 KV-cache groups"},
		"no hash block":      {func(c *coordinator.Config) { c.HashBlockTokens = 0 }, "hash_block_tokens is 0"},
		"scheduler block":    {func(c *coordinator.Config) { c.SchedulerBlockTokens = 24 }, "no multiple of hash_block_tokens"},
		"block below hash":   {func(c *coordinator.Config) { c.Groups[0].BlockTokens = 8 }, "no multiple of hash_block_tokens 16"},
		"no block":           {func(c *coordinator.Config) { c.Groups[0].BlockTokens = 0 }, "block_tokens 0"},
		"block beside":       {func(c *coordinator.Config) { c.Groups[0].BlockTokens = 48 }, "does not divide"},
		"window":             {func(c *coordinator.Config) { c.Groups[0].Kind = kv.SlidingWindow }, "window_tokens is 0"},
		"chunk":              {func(c *coordinator.Config) { c.Groups[0].Kind = kv.ChunkedLocal }, "window_tokens is 0"},
		"alignment":          {func(c *coordinator.Config) { c.HitAlignmentTokens = -1 }, "hit_alignment_tokens is -1"},
		"retention":          {func(c *coordinator.Config) { c.RetentionTokens = -2 }, "retention_tokens is -2"},
		"store retention":    {func(c *coordinator.Config) { c.StoreRetention = 16 }, "store_retention is 16"},
		"negative retention": {func(c *coordinator.Config) { c.StoreRetention = -2 }, "store_retention is -2"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fullConfig(16)
			cfg.SchedulerBlockTokens = 32
			test.change(&cfg)
			_, err := coordinator.New(cfg)
			if !errors.Is(err, coordinator.ErrConfig) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestConfigOf(t *testing.T) {
	ns := &kv.NamespaceSpec{
		HashBlockTokens: 16, SchedulerBlockTokens: 64, HitAlignmentTokens: 16, UseEagle: true, RetentionTokens: 128,
		Groups: []kv.GroupSpec{{Kind: kv.MambaAlign, BlockTokens: 64}},
	}
	co := mustNew(t, coordinator.ConfigOf(ns))
	if !co.FineGrained() || co.Alignment() != 16 || co.NumGroups() != 1 || co.HashIndex(0, 2) != 11 {
		t.Errorf("got %v %d %d %d", co.FineGrained(), co.Alignment(), co.NumGroups(), co.HashIndex(0, 2))
	}
	if co.AlignLookupLength(70) != 64 || co.AlignLookupLength(-1) != 0 {
		t.Errorf("aligned %d, %d", co.AlignLookupLength(70), co.AlignLookupLength(-1))
	}
	if err := co.Servable(); err != nil {
		t.Error(err)
	}
}

// TestServable is what the engine's own chunked-local manager asserts.
func TestServable(t *testing.T) {
	for name, test := range map[string]struct {
		block int
		eagle bool
		want  string
	}{
		"eagle":     {32, true, "can't be combined with EAGLE"},
		"alignment": {16, false, "blocks of the hit alignment"},
	} {
		t.Run(name, func(t *testing.T) {
			co := mustNew(t, coordinator.Config{
				Groups:          []kv.GroupSpec{{Kind: kv.ChunkedLocal, BlockTokens: test.block, WindowTokens: 64}},
				HashBlockTokens: 16, SchedulerBlockTokens: 32, UseEagle: test.eagle,
			})
			for i, err := range []error{
				co.Servable(),
				second(co.Lookup(64, 4, present)),
				second(co.HitLength(4, 64, true, present)),
				second(co.Explain(64, 4, present)),
			} {
				if !errors.Is(err, coordinator.ErrUnservable) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%d: got %v, want %q", i, err, test.want)
				}
			}
			// A load mask does not drop anything, so that EAGLE is no obstacle.
			if _, err := co.LoadMask(64); (err == nil) != test.eagle {
				t.Errorf("load mask: %v", err)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestArguments(t *testing.T) {
	co := mustNew(t, fullConfig(16))
	for i, err := range []error{
		second(co.Lookup(64, 4, nil)),
		second(co.Lookup(64, -1, present)),
		second(co.HitLength(-1, 64, true, present)),
		second(co.HitLength(4, -64, true, present)),
		second(co.LoadMask(-16)),
		second(co.StoreMask(17, 0, coordinator.NoPrefill)),
		second(co.StoreMask(-16, 0, coordinator.NoPrefill)),
		second(co.LookupMask(15)),
		third(co.Find(-1, 64, true, present)),
	} {
		if !errors.Is(err, coordinator.ErrArgument) {
			t.Errorf("%d: got %v", i, err)
		}
	}
	if got, err := co.Lookup(-5, 4, present); err != nil || got.HitTokens != 0 {
		t.Errorf("a negative length: %+v, %v", got, err)
	}
}

func third[T, U any](_ T, _ U, err error) error { return err }

// TestLookupBeyondHashes: the in-tree lookup indexes behind the hashes when a
// request has fewer of them than tokens.
func TestLookupBeyondHashes(t *testing.T) {
	co := mustNew(t, coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.FullAttention, BlockTokens: 16},
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 32},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16,
	})
	got, err := co.Lookup(1600, 4, func(group, hashIndex int) kv.Existence {
		if hashIndex >= 4 {
			t.Fatalf("asked for hash %d", hashIndex)
		}
		return kv.Present
	})
	if err != nil || got.HitTokens != 64 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestChunkedBoundary: a hit that ends an attention chunk needs none of it. The
// in-tree lookup asserts that the last chunk is stored, its server thread ends,
// and the scheduler waits for ever.
func TestChunkedBoundary(t *testing.T) {
	co := mustNew(t, coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.FullAttention, BlockTokens: 16},
			{Kind: kv.ChunkedLocal, BlockTokens: 16, WindowTokens: 64},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16,
	})
	got, err := co.Lookup(140, 8, func(group, hashIndex int) kv.Existence {
		if group == 1 {
			return kv.Absent
		}
		return kv.Present
	})
	if err != nil || got.HitTokens != 128 || len(got.Tails) != 2 || got.Tails[1].Tokens != 128 {
		t.Fatalf("got %+v, %v", got, err)
	}
	masks, err := co.LoadMask(got.HitTokens)
	if err != nil || masks[1].Count() != 0 || masks[0].Count() != 8 {
		t.Errorf("load masks %+v, %v", masks, err)
	}
}

// TestChunkedAcrossBlocks: attention chunks that do not end on blocks. The rule
// takes a block that two of them share for given; the hit would need blocks that
// are not stored.
func TestChunkedAcrossBlocks(t *testing.T) {
	co := mustNew(t, coordinator.Config{
		Groups:          []kv.GroupSpec{{Kind: kv.ChunkedLocal, BlockTokens: 4, WindowTokens: 15}},
		HashBlockTokens: 4, SchedulerBlockTokens: 4,
	})
	stored := map[int]bool{7: true, 6: true}
	exists := func(_, hashIndex int) kv.Existence {
		if stored[hashIndex] {
			return kv.Present
		}
		return kv.Absent
	}
	if got, err := co.Lookup(34, 8, exists); err != nil || got.HitTokens != 32 {
		// Token 32 attends from token 30 on: block 7 alone.
		t.Errorf("got %+v, %v", got, err)
	}
	delete(stored, 7)
	if got, err := co.Lookup(34, 8, exists); err != nil || got.HitTokens != 0 {
		// Up to token 28 the attention chunk begins at token 15: blocks 3 to 6.
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestWindowOfOne: with EAGLE a window of one token hits without a chunk, but a
// load asks for one.
func TestWindowOfOne(t *testing.T) {
	co := mustNew(t, coordinator.Config{
		Groups:          []kv.GroupSpec{{Kind: kv.SlidingWindow, BlockTokens: 4, WindowTokens: 1}},
		HashBlockTokens: 4, SchedulerBlockTokens: 4, UseEagle: true,
	})
	only := func(at int) coordinator.ExistsFunc {
		return func(_, hashIndex int) kv.Existence {
			if hashIndex >= at {
				return kv.Present
			}
			return kv.Absent
		}
	}
	if got, err := co.Lookup(33, 8, only(7)); err != nil || got.HitTokens != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := co.Lookup(33, 8, only(6)); err != nil || got.HitTokens != 28 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestStoreRetention: with the engine's default a request that shares a shorter
// prefix finds no window; with our own setting it does.
func TestStoreRetention(t *testing.T) {
	cfg := coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.FullAttention, BlockTokens: 16},
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 33},
			{Kind: kv.MambaAlign, BlockTokens: 16},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 64,
	}
	for name, test := range map[string]struct {
		retention, store int
		want             [3]int // chunks by group over 1024 tokens
	}{
		"as the engine, boundaries":  {0, coordinator.RetentionAsEngine, [3]int{64, 2, 0}},
		"as the engine, dense":       {coordinator.RetentionDense, coordinator.RetentionAsEngine, [3]int{64, 32, 0}},
		"dense":                      {0, coordinator.RetentionDense, [3]int{64, 32, 0}},
		"every 256":                  {0, 256, [3]int{64, 8, 0}},
		"denser than what is needed": {16, coordinator.RetentionAsEngine, [3]int{64, 64, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.RetentionTokens, cfg.StoreRetention = test.retention, test.store
			masks, err := mustNew(t, cfg).StoreMask(1024, 0, 1025)
			if err != nil {
				t.Fatal(err)
			}
			for g, m := range masks {
				if m.Count() != test.want[g] {
					t.Errorf("group %d stores %d chunks, want %d", g, m.Count(), test.want[g])
				}
				if m.Has(-1) || m.Has(m.End()) {
					t.Errorf("group %d has chunks outside its range", g)
				}
			}
		})
	}
}

// TestStoreMaskSuffix: the mask of a suffix is the suffix of the mask, and what
// was decided does not change when the request grows.
func TestStoreMaskSuffix(t *testing.T) {
	for _, eagle := range []bool{false, true} {
		co := mustNew(t, coordinator.Config{
			Groups:          []kv.GroupSpec{{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 40}},
			HashBlockTokens: 16, SchedulerBlockTokens: 64, UseEagle: eagle, StoreRetention: 128,
		})
		whole, err := co.StoreMask(1024, 0, 900)
		if err != nil {
			t.Fatal(err)
		}
		for start := 0; start <= 1100; start += 7 {
			for _, length := range []int{512, 1024} {
				m, err := co.StoreMask(length, start, 900)
				if err != nil {
					t.Fatal(err)
				}
				for i := m[0].First; i < m[0].End(); i++ {
					if m[0].Has(i) != whole[0].Has(i) {
						t.Fatalf("chunk %d from %d to %d", i, start, length)
					}
				}
			}
		}
	}
}
