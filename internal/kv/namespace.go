package kv

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
)

// SpecKind names a KV-cache-group kind, spelled as vLLM's spec classes are.
type SpecKind string

// The kinds that vLLM 0.32 registers as prefix-cacheable
// (vllm/v1/kv_cache_interface.py and vllm/v1/core/single_type_kv_cache_manager.py).
const (
	FullAttention     SpecKind = "full_attention"
	MLAAttention      SpecKind = "mla_attention"
	HiddenState       SpecKind = "hidden_state"
	RSWA              SpecKind = "rswa"
	SinkFullAttention SpecKind = "sink_full_attention"
	SlidingWindow     SpecKind = "sliding_window"
	SlidingWindowMLA  SpecKind = "sliding_window_mla"
	ChunkedLocal      SpecKind = "chunked_local_attention"
	MambaAlign        SpecKind = "mamba_align"
)

// GroupSpec describes one KV-cache group of a namespace, in store-group order
// (the prefix-cacheable groups of the engine, renumbered from 0).
type GroupSpec struct {
	// Kind selects the hit and mask rules.
	Kind SpecKind `msgpack:"kind" json:"kind"`
	// BlockTokens is the tokens one block covers, decode-context-parallel
	// sharding already applied.
	BlockTokens int `msgpack:"block_tokens" json:"block_tokens"`
	// WindowTokens is the sliding window or the chunk of chunked local
	// attention; 0 for the other kinds.
	WindowTokens int `msgpack:"window_tokens" json:"window_tokens"`
	// Eagle marks a group whose last matched block the drafter recomputes.
	Eagle bool `msgpack:"eagle" json:"eagle"`
	// Identity makes specs unequal that differ in something the rules do not
	// read (dtype, heads, head size): groups merge only when kind, block, window
	// and identity are equal.
	Identity string `msgpack:"identity" json:"identity"`
	// ShardBytes is the length of one rank's shard of one block.
	ShardBytes int `msgpack:"shard_bytes" json:"shard_bytes"`
	// Shards is the number of ranks that hold different bytes of a chunk, 1 to 64.
	Shards int `msgpack:"shards" json:"shards"`
}

// NamespaceSpec is everything that must be equal for two engines' KV bytes to be
// interchangeable. The in-tree connector's keys leave most of it out
// (mooncake/store/data.py, KeyMetadata), so that two checkpoints with the same
// base name collide; ours do not.
type NamespaceSpec struct {
	// Model is the model's path or hub name, as the engine was given it.
	Model string `msgpack:"model" json:"model"`
	// Revision is the hub revision, empty for none.
	Revision string `msgpack:"revision" json:"revision"`
	// Fingerprint tells two checkpoints at one path apart, and engines that compute
	// other numbers from one: a digest over the state of the model's files and the
	// settings that matter. Empty when the engine can't tell.
	Fingerprint string `msgpack:"fingerprint" json:"fingerprint"`
	// CachePrefix is the user's cache_prefix.
	CachePrefix string `msgpack:"cache_prefix" json:"cache_prefix"`
	// Dtype is the element type of the KV cache, as torch spells it.
	Dtype string `msgpack:"dtype" json:"dtype"`
	// Layout is the engine's KV-cache layout and the shard format, for example
	// "LBHNC/rank_local".
	Layout string `msgpack:"layout" json:"layout"`
	// HashAlgorithm is prefix_caching_hash_algo.
	HashAlgorithm string `msgpack:"hash_algorithm" json:"hash_algorithm"`
	// HashBytes is the length of one block hash.
	HashBytes int `msgpack:"hash_bytes" json:"hash_bytes"`
	// HashBlockTokens is the tokens one block hash covers.
	HashBlockTokens int `msgpack:"hash_block_tokens" json:"hash_block_tokens"`
	// SchedulerBlockTokens is the LCM of the groups' block sizes.
	SchedulerBlockTokens int `msgpack:"scheduler_block_tokens" json:"scheduler_block_tokens"`
	// HitAlignmentTokens is cache_hit_alignment_tokens; 0 means
	// SchedulerBlockTokens (no fine-grained hits).
	HitAlignmentTokens int `msgpack:"hit_alignment_tokens" json:"hit_alignment_tokens"`
	// UseEagle is the engine's use_eagle_block_drop().
	UseEagle bool `msgpack:"use_eagle" json:"use_eagle"`
	// RetentionTokens is prefix_cache_retention_interval; -1 means None (dense).
	RetentionTokens int `msgpack:"retention_tokens" json:"retention_tokens"`
	// TP, PP, PCP and DCP are the parallel sizes; rank-local layouts differ
	// between them.
	TP  int `msgpack:"tp" json:"tp"`
	PP  int `msgpack:"pp" json:"pp"`
	PCP int `msgpack:"pcp" json:"pcp"`
	DCP int `msgpack:"dcp" json:"dcp"`
	// Groups are the store groups.
	Groups []GroupSpec `msgpack:"groups" json:"groups"`
	// KeySpace, if not empty, says that the shards are also objects of the in-tree
	// connector (compat_keys): it is what all of their keys begin with, see
	// KeyPrefix. Model is then the base name alone, and Revision and Fingerprint are
	// empty, because the keys leave them out.
	KeySpace string `msgpack:"key_space,omitempty" json:"key_space,omitempty"`
}

// MaxShards is the largest number of shards of a chunk.
const MaxShards = 64

// Limits of a registration; larger values come from a broken or hostile peer.
const (
	maxGroups      = 64
	maxShardBytes  = 1 << 32
	maxBlockTokens = 1 << 20
	maxTextBytes   = 4096
)

// Validate reports the first thing about the spec that can't be served, naming
// the field and what would be right.
func (s *NamespaceSpec) Validate() error {
	for _, text := range []string{s.Model, s.Revision, s.Fingerprint, s.CachePrefix, s.Dtype, s.Layout, s.HashAlgorithm, s.KeySpace} {
		if len(text) > maxTextBytes {
			return fmt.Errorf("namespace: a text field of %d bytes, at most %d are accepted", len(text), maxTextBytes)
		}
	}
	if s.Model == "" {
		return fmt.Errorf("namespace: model is empty")
	}
	if s.HashBytes < 8 || s.HashBytes > MaxHashBytes {
		return fmt.Errorf("namespace: hash_bytes is %d, want 8 to %d", s.HashBytes, MaxHashBytes)
	}
	if s.HashBlockTokens < 1 || s.HashBlockTokens > maxBlockTokens {
		return fmt.Errorf("namespace: hash_block_tokens is %d, want 1 to %d", s.HashBlockTokens, maxBlockTokens)
	}
	if s.SchedulerBlockTokens < 1 || s.SchedulerBlockTokens%s.HashBlockTokens != 0 {
		return fmt.Errorf("namespace: scheduler_block_tokens %d is no multiple of hash_block_tokens %d", s.SchedulerBlockTokens, s.HashBlockTokens)
	}
	if len(s.Groups) == 0 || len(s.Groups) > maxGroups {
		return fmt.Errorf("namespace: %d KV-cache groups, want 1 to %d", len(s.Groups), maxGroups)
	}
	for i, g := range s.Groups {
		if g.BlockTokens < 1 || g.BlockTokens > maxBlockTokens || g.BlockTokens%s.HashBlockTokens != 0 || s.SchedulerBlockTokens%g.BlockTokens != 0 {
			return fmt.Errorf("namespace: group %d: block_tokens %d must be a multiple of hash_block_tokens %d and divide scheduler_block_tokens %d",
				i, g.BlockTokens, s.HashBlockTokens, s.SchedulerBlockTokens)
		}
		if g.ShardBytes < 1 || g.ShardBytes > maxShardBytes {
			return fmt.Errorf("namespace: group %d: shard_bytes is %d, want 1 to %d", i, g.ShardBytes, maxShardBytes)
		}
		if g.Shards < 1 || g.Shards > MaxShards {
			return fmt.Errorf("namespace: group %d: %d shards, want 1 to %d", i, g.Shards, MaxShards)
		}
		if g.WindowTokens < 0 || g.WindowTokens > 1<<31 {
			return fmt.Errorf("namespace: group %d: window_tokens is %d", i, g.WindowTokens)
		}
	}
	for name, n := range map[string]int{"tp": s.TP, "pp": s.PP, "pcp": s.PCP, "dcp": s.DCP} {
		if n < 1 || n > 4096 {
			return fmt.Errorf("namespace: %s is %d, want 1 to 4096", name, n)
		}
	}
	if s.KeySpace != "" {
		return s.validateKeys()
	}
	return nil
}

// Digest names the namespace: equal specs have equal digests.
func (s *NamespaceSpec) Digest() [sha256.Size]byte {
	canonical := *s
	canonical.Groups = slices.Clone(s.Groups)
	encoded, err := json.Marshal(canonical)
	if err != nil {
		panic(fmt.Sprintf("BUG: a namespace spec does not encode: %v", err))
	}
	return sha256.Sum256(encoded)
}
