package kv

// Parallel is the parallel sizes that decide which ranks hold different bytes.
type Parallel struct {
	TP, PCP, DCP, PP int
	// KVHeads is the model's total number of KV heads.
	KVHeads int
}

// ReplicationFactor returns how many tensor-parallel ranks hold the same bytes
// of a group whose layers have these kinds. A recurrent state makes the group's
// packed value its rank's own; pure MLA is the same on every rank; heads are
// repeated where there are fewer than ranks.
//
// REQUIRES: len(kinds) > 0, all sizes >= 1.
func (p Parallel) ReplicationFactor(kinds ...SpecKind) int {
	if p.DCP > 1 {
		return 1
	}
	mla := true
	for _, kind := range kinds {
		switch kind {
		case MambaAlign:
			return 1
		case MLAAttention, HiddenState, SlidingWindowMLA:
		default:
			mla = false
		}
	}
	if mla {
		return p.TP
	}
	return max(1, p.TP/p.KVHeads)
}

// KeyRank returns the ranks of the key under which a rank's shard of a group is
// stored, factor being the group's replication factor. The ranks that share a
// key hold the same bytes.
func (p Parallel) KeyRank(tp, pcp, pp, factor int) RankNamespace {
	ns := RankNamespace{TP: tp / factor, PCP: pcp, PP: pp}
	if p.DCP > 1 {
		ns.DCP = tp % p.DCP
	}
	return ns
}

// LookupRanks returns the ranks whose keys must all exist for a chunk of a group
// to be loadable, factor being the group's replication factor. The order is the
// in-tree connector's, and with it the number of a shard.
func (p Parallel) LookupRanks(factor int) []RankNamespace {
	if p.DCP > 1 {
		factor = 1
	}
	shards := p.TP / factor
	ranks := make([]RankNamespace, 0, p.PCP*shards*p.PP)
	for pcp := range p.PCP {
		for tp := range shards {
			for pp := range p.PP {
				ns := RankNamespace{TP: tp, PCP: pcp, PP: pp}
				if p.DCP > 1 {
					ns.DCP = tp % p.DCP
				}
				ranks = append(ranks, ns)
			}
		}
	}
	return ranks
}

// SharedLookupRanks is LookupRanks of a TP-shared layout of storeTP shards.
func (p Parallel) SharedLookupRanks(storeTP int) []RankNamespace {
	ranks := make([]RankNamespace, 0, storeTP*p.PP)
	for shard := range storeTP {
		for pp := range p.PP {
			ranks = append(ranks, RankNamespace{TP: shard, PP: pp})
		}
	}
	return ranks
}

// SharedShards returns the shards [first, first+n) of a TP-shared layout that a
// tensor-parallel rank holds.
//
// REQUIRES: p.TP divides storeTP.
func (p Parallel) SharedShards(tp, storeTP int) (first, n int) {
	n = storeTP / p.TP
	return tp * n, n
}
