package worker

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// parallelEngine draws an engine: its sizes, its groups, and how many shards a
// rank holds of a block.
type parallelEngine struct {
	sizes  kv.Parallel
	groups []kv.GroupSpec
	factor []int // by group, the ranks that hold the same bytes
	held   int
}

const drawnBlock = 16

func drawEngine(t *rapid.T) parallelEngine {
	tp := rapid.SampledFrom([]int{1, 2, 3, 4, 6, 8}).Draw(t, "tp")
	e := parallelEngine{held: 1, sizes: kv.Parallel{
		TP: tp, PP: rapid.IntRange(1, 3).Draw(t, "pp"), PCP: 1, DCP: 1, KVHeads: rapid.SampledFrom([]int{1, 2, 4, 24}).Draw(t, "heads"),
	}}
	divisors := []int{1}
	for d := 2; d <= tp; d++ {
		if tp%d == 0 {
			divisors = append(divisors, d)
		}
	}
	kinds := rapid.SliceOfN(rapid.SampledFrom([]kv.SpecKind{
		kv.FullAttention, kv.MLAAttention, kv.SlidingWindow, kv.SlidingWindowMLA, kv.MambaAlign,
	}), 1, 3).Draw(t, "kinds")
	switch {
	case len(kinds) == 1 && kinds[0] == kv.FullAttention && e.sizes.KVHeads%tp == 0 && rapid.Bool().Draw(t, "cut"):
		e.held = rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "held")
	case len(kinds) == 1:
		e.sizes.PCP = rapid.IntRange(1, 2).Draw(t, "pcp")
		fallthrough
	default:
		e.sizes.DCP = rapid.SampledFrom(divisors).Draw(t, "dcp")
	}
	for g, kind := range kinds {
		spec := kv.GroupSpec{Kind: kind, BlockTokens: drawnBlock, ShardBytes: 64, Identity: fmt.Sprint(g)}
		if kind == kv.SlidingWindow || kind == kv.SlidingWindowMLA {
			spec.WindowTokens = 40
		}
		e.factor = append(e.factor, e.sizes.ReplicationFactor(kind))
		spec.Shards = len(e.sizes.LookupRanks(e.factor[g])) * e.held
		e.groups = append(e.groups, spec)
	}
	return e
}

// ranks returns every rank's view of the engine. What each stores in its turn is
// in-tree's rule, which the shim follows (pyshim/tests/test_ranks.py).
func (e *parallelEngine) ranks(t *rapid.T) (ranks []*rank) {
	for pp := range e.sizes.PP {
		for pcp := range e.sizes.PCP {
			for tp := range e.sizes.TP {
				reg := &connector.Register{
					NumBlocks: 100, JobSlots: 8, HeldShards: e.held, Regions: []connector.KVRegion{{Bytes: 100 * 64 * 4}},
					Namespace: kv.NamespaceSpec{
						Model: "m", HashBytes: 8, HashBlockTokens: drawnBlock, SchedulerBlockTokens: drawnBlock, RetentionTokens: -1,
						TP: e.sizes.TP, PP: e.sizes.PP, PCP: e.sizes.PCP, DCP: e.sizes.DCP, Groups: e.groups,
					},
				}
				for g, factor := range e.factor {
					shard := slices.Index(e.sizes.LookupRanks(factor), e.sizes.KeyRank(tp, pcp, pp, factor))
					reg.ShardByGroup = append(reg.ShardByGroup, shard*e.held)
					reg.PutStride = append(reg.PutStride, factor)
					reg.PutPhase = append(reg.PutPhase, (tp+g)%factor)
					for k := range e.held {
						reg.Segments = append(reg.Segments, connector.KVSegment{Group: g, Shard: k, Offset: uint64(64 * k), BlockStride: 64 * 4, Bytes: 64})
					}
				}
				r, err := newRank(reg)
				if err != nil {
					t.Fatal(err)
				}
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

// Whatever the parallel sizes, every shard that some rank loads is put by one
// rank and no other, and what is put makes whole chunks.
func TestEveryShardIsPutOnce(t *testing.T) {
	type key struct {
		group, shard uint32
		hash         kv.Hash
	}
	rapid.Check(t, func(t *rapid.T) {
		e := drawEngine(t)
		ranks := e.ranks(t)
		chunks := rapid.IntRange(1, 12).Draw(t, "chunks")
		start := rapid.IntRange(0, chunks-1).Draw(t, "start") * drawnBlock
		local := rapid.IntRange(0, chunks).Draw(t, "local") * drawnBlock
		length := chunks * drawnBlock
		var tables [][]byte
		var puts [][3]int
		for g, spec := range e.groups {
			var blocks []uint32
			for i := range uint32(chunks) {
				blocks = append(blocks, 1+i)
			}
			tables = append(tables, planTable(blocks...))
			if spec.Kind == kv.MambaAlign { // states are stored where a prefix ends
				puts = append(puts, [3]int{g, chunks, length})
			}
		}
		putBy := map[key][]int{}
		for number, r := range ranks {
			for _, from := range []int{0, start} { // a request may be saved in two steps
				items, _, err := r.planStore(&connector.StoreJob{
					TokenLen: length, PrefillEnd: length + 1, HashLen: 8, Hashes: planHashes(chunks), Blocks: tables, BoundaryPuts: puts,
				}, from)
				if err != nil {
					t.Fatal(err)
				}
				for _, it := range items {
					k := key{it.put.Group, it.put.Shard, it.put.Hash}
					if !slices.Contains(putBy[k], number) {
						putBy[k] = append(putBy[k], number)
					}
				}
			}
		}
		whole := map[key]int{}
		for k, by := range putBy {
			if len(by) != 1 {
				t.Fatalf("shard %d of group %d is put by ranks %v", k.shard, k.group, by)
			}
			k.shard = 0
			whole[k]++
		}
		for k, shards := range whole {
			if want := e.groups[k.group].Shards; shards != want {
				t.Fatalf("group %d: %d of a chunk's %d shards are put", k.group, shards, want)
			}
		}
		for number, r := range ranks {
			items, err := r.planLoad(&connector.LoadJob{
				TokenLen: length, LocalTokens: local, HashLen: 8, Hashes: planHashes(chunks), Blocks: tables,
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(items) == 0 && local < length {
				t.Fatalf("rank %d loads nothing of %d tokens", number, length-local)
			}
			for _, it := range items {
				if len(putBy[key{uint32(it.group), it.shard, it.hash}]) == 0 {
					t.Fatalf("rank %d loads shard %d of group %d, which nobody puts", number, it.shard, it.group)
				}
			}
		}
	})
}
