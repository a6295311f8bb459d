package kv

import (
	"fmt"
	"strconv"
)

// ShardRank returns the ranks that the in-tree connector's keys name a shard by.
// Shards are counted pipeline stage by pipeline stage, in each prefill-context rank
// by prefill-context rank, and in each over what the tensor-parallel ranks hold of
// different bytes.
//
// REQUIRES: s.KeySpace is not empty and the spec is valid; 0 <= shard < Shards of
// the group.
func (s *NamespaceSpec) ShardRank(group, shard int) RankNamespace {
	columns := s.Groups[group].Shards / (s.PP * s.PCP)
	stage, column := shard/columns, shard%columns
	return RankNamespace{TP: column, PCP: stage % s.PCP, DCP: column % s.DCP, PP: stage / s.PCP}
}

// KeyPrefix returns the in-tree connector's key of a shard up to the hash; see
// AppendPoolKey.
//
// REQUIRES: as ShardRank.
func (s *NamespaceSpec) KeyPrefix(group, shard int) string {
	return keyPrefix(s.KeySpace, s.ShardRank(group, shard), group)
}

// validateKeys checks what ShardRank relies on.
func (s *NamespaceSpec) validateKeys() error {
	if s.PCP > 1 && s.DCP > 1 {
		return fmt.Errorf("namespace: key_space with pcp %d and dcp %d: in-tree lookups ask for keys that its ranks do not write", s.PCP, s.DCP)
	}
	if s.Revision != "" || s.Fingerprint != "" || s.Model != ModelBaseName(s.Model) {
		return fmt.Errorf("namespace: key_space %.64q with model %.64q, revision %.64q and fingerprint %.16q; its keys name the model's base name alone",
			s.KeySpace, s.Model, s.Revision, s.Fingerprint)
	}
	for i, g := range s.Groups {
		if g.Shards%(s.PP*s.PCP) != 0 {
			return fmt.Errorf("namespace: group %d: %d shards on %d pipeline stages of %d prefill-context ranks", i, g.Shards, s.PP, s.PCP)
		}
	}
	return nil
}

// KeyConflict says why engines of two namespaces must not use one key space, and
// is empty if they may: a key does not tell what it says here, so that each would
// take the other's bytes for its own. Engines whose hashes can't be equal have no
// key in common, and what decides only which chunks are stored or hit is no
// conflict.
func (s *NamespaceSpec) KeyConflict(other *NamespaceSpec) string {
	if s.KeySpace == "" || s.KeySpace != other.KeySpace || s.HashAlgorithm != other.HashAlgorithm || s.HashBlockTokens != other.HashBlockTokens {
		return ""
	}
	if len(s.Groups) != len(other.Groups) {
		return fmt.Sprintf("%d KV-cache groups here and %d there", len(s.Groups), len(other.Groups))
	}
	type difference struct {
		name         string
		ours, theirs any
	}
	found := []difference{
		// Of one key space with an @ in either.
		{"model", s.Model, other.Model}, {"cache_prefix", strconv.Quote(s.CachePrefix), strconv.Quote(other.CachePrefix)},
		{"dtype", s.Dtype, other.Dtype},
		{"layout", s.Layout, other.Layout},
		{"tp", s.TP, other.TP}, {"pp", s.PP, other.PP}, {"pcp", s.PCP, other.PCP}, {"dcp", s.DCP, other.DCP},
	}
	for i, g := range s.Groups {
		o, name := other.Groups[i], fmt.Sprintf("group %d's ", i)
		found = append(found, difference{name + "kind", g.Kind, o.Kind}, difference{name + "block_tokens", g.BlockTokens, o.BlockTokens},
			difference{name + "spec", g.Identity, o.Identity}, difference{name + "shard_bytes", g.ShardBytes, o.ShardBytes},
			difference{name + "shards", g.Shards, o.Shards})
	}
	for _, d := range found {
		if d.ours != d.theirs {
			return fmt.Sprintf("%s is %v here and %v there", d.name, d.ours, d.theirs)
		}
	}
	return ""
}
