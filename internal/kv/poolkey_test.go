package kv

import (
	"slices"
	"testing"
)

// The expected strings were printed by vLLM 0.32.0; the differential test of the
// coordinator compares many more where vLLM is installed.
func TestPoolKey(t *testing.T) {
	hash := []byte{0xde, 0xad, 0xbe, 0xef}
	plain := PoolKeySpace{ModelName: ModelBaseName("meta-llama/Llama-3.1-8B/")}
	tenant := PoolKeySpace{CachePrefix: "tenant", ModelName: "m"}
	shared := PoolKeySpace{ModelName: "m", StoreNamespace: StoreNamespaceShared(8, 2, FormatSharedLBHNC)}
	for _, test := range []struct{ got, want string }{
		{PoolKey(plain.Prefix(RankNamespace{TP: 3, PCP: 1, DCP: 1, PP: 2}, 4), hash), "Llama-3.1-8B@tp_rank:3@pcp1@dcp1@pp_rank:2@group:4@deadbeef"},
		{PoolKey(tenant.Prefix(RankNamespace{}, 0), hash), "tenant@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@deadbeef"},
		{shared.Prefix(RankNamespace{TP: 7, PP: 1}, 0), "m@store_tp:8@store_pp:2@store_format:tp_shared_lbhnc@tp_rank:7@pcp0@dcp0@pp_rank:1@group:0"},
		{tenant.LifecycleGroup(hash), "vllm-mooncake-store:tenant@m@deadbeef"},
		{plain.LifecycleGroup(hash), "vllm-mooncake-store:Llama-3.1-8B@deadbeef"},
		{StoreNamespaceMQA(2), "@store_pp:2@store_format:tp_shared_mqa"},
		{StoreNamespaceRankLocal(2, 4, "LBNHC"), "@store_pp:2@store_format:rank_local_tp4_layout_LBNHC"},
		{ModelBaseName("m"), "m"},
		{ModelBaseName("/data/models/x//"), "x"},
		{ModelBaseName("///"), ""},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestReplicationFactor(t *testing.T) {
	for _, test := range []struct {
		p     Parallel
		kinds []SpecKind
		want  int
	}{
		{Parallel{TP: 8, DCP: 1, KVHeads: 8}, []SpecKind{FullAttention}, 1},
		{Parallel{TP: 8, DCP: 1, KVHeads: 2}, []SpecKind{FullAttention}, 4},
		{Parallel{TP: 8, DCP: 1, KVHeads: 3}, []SpecKind{SlidingWindow}, 2},
		{Parallel{TP: 2, DCP: 1, KVHeads: 8}, []SpecKind{RSWA}, 1},
		{Parallel{TP: 8, DCP: 2, KVHeads: 1}, []SpecKind{MLAAttention}, 1},
		{Parallel{TP: 8, DCP: 1, KVHeads: 1}, []SpecKind{MLAAttention, SlidingWindowMLA, HiddenState}, 8},
		{Parallel{TP: 8, DCP: 1, KVHeads: 4}, []SpecKind{MLAAttention, FullAttention}, 2},
		{Parallel{TP: 8, DCP: 1, KVHeads: 1}, []SpecKind{FullAttention, MambaAlign}, 1},
	} {
		if got := test.p.ReplicationFactor(test.kinds...); got != test.want {
			t.Errorf("%+v %v: got %d, want %d", test.p, test.kinds, got, test.want)
		}
	}
}

// TestLookupRanks: every rank's shard is under one of the keys that a lookup
// asks for, and every such key is some rank's.
func TestLookupRanks(t *testing.T) {
	for _, p := range []Parallel{
		{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 8},
		{TP: 8, PCP: 2, DCP: 1, PP: 3, KVHeads: 2},
		{TP: 8, PCP: 1, DCP: 1, PP: 1, KVHeads: 3},
		{TP: 8, PCP: 2, DCP: 4, PP: 2, KVHeads: 1},
	} {
		for _, kind := range []SpecKind{FullAttention, MLAAttention, MambaAlign} {
			factor := p.ReplicationFactor(kind)
			asked := p.LookupRanks(factor)
			held := map[RankNamespace]bool{}
			for tp := range p.TP {
				for pcp := range p.PCP {
					for pp := range p.PP {
						held[p.KeyRank(tp, pcp, pp, factor)] = true
					}
				}
			}
			if len(asked) != len(held) {
				t.Fatalf("%+v: asks for %d keys, ranks hold %d", p, len(asked), len(held))
			}
			for _, ns := range asked {
				if !held[ns] {
					t.Errorf("%+v: no rank holds %+v", p, ns)
				}
			}
		}
	}
	p := Parallel{TP: 2, PCP: 1, DCP: 2, PP: 2}
	if got := p.LookupRanks(7); len(got) != 4 || got[3] != (RankNamespace{TP: 1, DCP: 1, PP: 1}) {
		t.Errorf("got %+v", got)
	}
}

func TestSharedShards(t *testing.T) {
	p := Parallel{TP: 2, PCP: 1, DCP: 1, PP: 2, KVHeads: 8}
	var tps []int
	for tp := range p.TP {
		first, n := p.SharedShards(tp, 8)
		for i := range n {
			tps = append(tps, first+i)
		}
	}
	if !slices.Equal(tps, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("got %v", tps)
	}
	ranks := p.SharedLookupRanks(8)
	if len(ranks) != 16 || ranks[3] != (RankNamespace{TP: 1, PP: 1}) {
		t.Errorf("got %+v", ranks)
	}
}
