package kv

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// RankNamespace is the rank part of a pool key.
type RankNamespace struct {
	TP, PCP, DCP, PP int
}

// PoolKeySpace is the part of a pool key that all ranks and groups of an engine
// share. Keys are byte for byte those of the in-tree connector
// (mooncake/store/data.py, PoolKey), so that each can read what the other wrote.
type PoolKeySpace struct {
	// CachePrefix is the user's cache_prefix, empty for none.
	CachePrefix string
	// ModelName is the model's base name; see ModelBaseName.
	ModelName string
	// StoreNamespace is empty for the rank-local layout that is the default;
	// see StoreNamespaceShared and its neighbours.
	StoreNamespace string
}

// ModelBaseName returns the last component of a model's path or hub name, as
// pool keys spell it.
func ModelBaseName(model string) string {
	model = strings.TrimRight(model, "/")
	return model[strings.LastIndexByte(model, '/')+1:]
}

// Prefix returns the key of a rank's shard in a group up to the hash. In a
// TP-shared layout ranks.TP is the shard.
func (s PoolKeySpace) Prefix(ranks RankNamespace, group int) string {
	return keyPrefix(s.Common(), ranks, group)
}

func keyPrefix(common string, ranks RankNamespace, group int) string {
	return fmt.Sprintf("%s@tp_rank:%d@pcp%d@dcp%d@pp_rank:%d@group:%d", common, ranks.TP, ranks.PCP, ranks.DCP, ranks.PP, group)
}

// LifecycleGroup returns the in-tree connector's Mooncake group id of a chunk
// hash: the shards and KV-cache groups of one prefix live and die together.
func (s PoolKeySpace) LifecycleGroup(hash []byte) string {
	return "vllm-mooncake-store:" + s.Common() + "@" + hex.EncodeToString(hash)
}

// Common returns what all keys begin with: a namespace's KeySpace.
func (s PoolKeySpace) Common() string {
	if s.CachePrefix == "" {
		return s.ModelName + s.StoreNamespace
	}
	return s.CachePrefix + "@" + s.ModelName + s.StoreNamespace
}

// AppendPoolKey appends the key of a chunk hash under a prefix.
func AppendPoolKey(dst []byte, prefix string, hash []byte) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, '@')
	return hex.AppendEncode(dst, hash)
}

// PoolKeyBytes returns the length of a key under a prefix.
func PoolKeyBytes(prefix string, hashBytes int) int { return len(prefix) + 1 + 2*hashBytes }

// PoolKey returns the key of a chunk hash under a prefix.
func PoolKey(prefix string, hash []byte) string {
	return string(AppendPoolKey(make([]byte, 0, PoolKeyBytes(prefix, len(hash))), prefix, hash))
}

// Formats of a TP-shared store layout, as pool keys spell them.
const (
	FormatSharedLBHNC = "tp_shared_lbhnc"
	FormatSharedLBNHC = "tp_shared_lbnhc"
)

// StoreNamespaceShared is the StoreNamespace of a TP-shared layout of storeTP
// shards.
func StoreNamespaceShared(storeTP, pp int, format string) string {
	return fmt.Sprintf("@store_tp:%d@store_pp:%d@store_format:%s", storeTP, pp, format)
}

// StoreNamespaceMQA is the StoreNamespace of a model with one KV head whose
// TP-shared layout was asked for: its payload is the same on every rank.
func StoreNamespaceMQA(pp int) string {
	return fmt.Sprintf("@store_pp:%d@store_format:tp_shared_mqa", pp)
}

// StoreNamespaceRankLocal is the StoreNamespace where a TP-shared layout was
// asked for and can't be had.
func StoreNamespaceRankLocal(pp, tp int, layout string) string {
	return fmt.Sprintf("@store_pp:%d@store_format:rank_local_tp%d_layout_%s", pp, tp, layout)
}
