package vllmdiff

import (
	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Case is a coordinator case with what only vLLM's worker reads.
type Case struct {
	coordcases.Case
	TP      int `json:"tp"`
	PCP     int `json:"pcp"`
	DCP     int `json:"dcp"`
	PP      int `json:"pp"`
	KVHeads int `json:"kv_heads"`
	// StoreTP is the number of shards asked for, -1 for one that makes no sense,
	// 0 for none.
	StoreTP int    `json:"store_tp,omitempty"`
	Layout  string `json:"layout,omitempty"`
	Cross   bool   `json:"cross,omitempty"`
	// Rank is the tensor-parallel rank whose own keys are compared.
	Rank   int    `json:"rank,omitempty"`
	Model  string `json:"model,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	// Partial are chunks of which all shards but one are stored:
	// (group, hash index, which one).
	Partial [][3]int `json:"partial,omitempty"`
}

// Length is what a hit of the case is measured against.
func (c *Case) Length() int {
	switch c.Op {
	case coordcases.OpFind:
		return c.M
	case coordcases.OpLookup:
		return c.Tokens
	}
	return 0
}

// Keys are the strings and numbers of a case that name its objects in a store.
type Keys struct {
	// Prefixes are the keys up to the hash that a lookup asks for, by group.
	Prefixes [][]string `json:"prefixes"`
	// Factors are the replication factors, by group.
	Factors []int `json:"factors"`
	// Own are the keys of the rank's shards of the hash 0, by group.
	Own [][]string `json:"own"`
	// Lifecycle is the Mooncake group id of the hash 0.
	Lifecycle string `json:"lifecycle"`
}

// Keys returns the keys of the case.
func (c *Case) Keys() Keys {
	parallel := kv.Parallel{TP: c.TP, PCP: c.PCP, DCP: c.DCP, PP: c.PP, KVHeads: c.KVHeads}
	groups := c.Config().Groups
	wish := kv.StoreLayoutWish{
		Wanted: c.StoreTP != 0, StoreTP: max(0, c.StoreTP), Layout: c.Layout, CrossLayerBlocks: c.Cross,
		UniformType: c.Groups[0].Layers > 0,
	}
	for _, g := range groups {
		wish.Kinds = append(wish.Kinds, g.Kind)
	}
	layout := parallel.ChooseStoreLayout(wish)
	space := kv.PoolKeySpace{CachePrefix: c.Prefix, ModelName: kv.ModelBaseName(c.Model), StoreNamespace: layout.Namespace}
	hash := []byte{0, 0, 0, 0}
	keys := Keys{Lifecycle: space.LifecycleGroup(hash)}
	for g, spec := range groups {
		kinds := make([]kv.SpecKind, max(1, c.Groups[g].Layers))
		for i := range kinds {
			kinds[i] = spec.Kind
		}
		factor := parallel.ReplicationFactor(kinds...)
		ranks := parallel.LookupRanks(factor)
		own := []kv.RankNamespace{parallel.KeyRank(c.Rank, 0, 0, factor)}
		if layout.StoreTP > 0 {
			ranks, own = parallel.SharedLookupRanks(layout.StoreTP), nil
			first, n := parallel.SharedShards(c.Rank, layout.StoreTP)
			for shard := first; shard < first+n; shard++ {
				own = append(own, kv.RankNamespace{TP: shard})
			}
		}
		prefixes := make([]string, len(ranks))
		for i, r := range ranks {
			prefixes[i] = space.Prefix(r, g)
		}
		ownKeys := make([]string, len(own))
		for i, r := range own {
			ownKeys[i] = kv.PoolKey(space.Prefix(r, g), hash)
		}
		keys.Prefixes, keys.Own = append(keys.Prefixes, prefixes), append(keys.Own, ownKeys)
		keys.Factors = append(keys.Factors, factor)
	}
	return keys
}
