package vllmdiff

import (
	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Case is a coordinator case with what only vLLM's worker reads.
type Case struct {
	coordcases.Case
	TP      int    `json:"tp"`
	PCP     int    `json:"pcp"`
	DCP     int    `json:"dcp"`
	PP      int    `json:"pp"`
	KVHeads int    `json:"kv_heads"`
	StoreTP int    `json:"store_tp,omitempty"`
	Format  string `json:"format,omitempty"`
	Model   string `json:"model,omitempty"`
	Prefix  string `json:"prefix,omitempty"`
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

// Prefixes returns the keys up to the hash that a lookup of the case asks for,
// and the replication factors, by group.
func (c *Case) Prefixes() (prefixes [][]string, factors []int) {
	parallel := kv.Parallel{TP: c.TP, PCP: c.PCP, DCP: c.DCP, PP: c.PP, KVHeads: c.KVHeads}
	space := kv.PoolKeySpace{CachePrefix: c.Prefix, ModelName: kv.ModelBaseName(c.Model)}
	if c.StoreTP > 0 {
		space.StoreNamespace = kv.StoreNamespaceShared(c.StoreTP, c.PP, c.Format)
	}
	for g, spec := range c.Config().Groups {
		kinds := make([]kv.SpecKind, max(1, c.Groups[g].Layers))
		for i := range kinds {
			kinds[i] = spec.Kind
		}
		factor := parallel.ReplicationFactor(kinds...)
		ranks := parallel.LookupRanks(factor)
		if c.StoreTP > 0 {
			ranks = parallel.SharedLookupRanks(c.StoreTP)
		}
		group := make([]string, len(ranks))
		for i, r := range ranks {
			group[i] = space.Prefix(r, g)
		}
		prefixes, factors = append(prefixes, group), append(factors, factor)
	}
	return prefixes, factors
}
