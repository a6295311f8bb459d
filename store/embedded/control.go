package embedded

import (
	"context"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Refusals of control calls. Their texts say what to do.
var (
	// ErrPinBudget: hard pins would take more than their share of the memory.
	ErrPinBudget = errors.New("hard pins have used up their share of the store")
	// ErrQuotaTable: no more salt tags can be told apart.
	ErrQuotaTable = errors.New("too many salt tags in the store")
	// ErrScope: a scope that names nothing, or contradicts itself.
	ErrScope = errors.New("scope of removal")
	// ErrRemovals: the cluster has so many removals before it that it takes no more.
	ErrRemovals = errors.New("the cluster has too many chunks to remove")
	// ErrNoTier: there is no slower tier to fetch chunks from.
	ErrNoTier = errors.New("the store has no disk tier and no cluster")
	// ErrOption: a value out of range.
	ErrOption = errors.New("value out of range")
)

// PinKind says how strongly a chunk is kept.
type PinKind uint8

// The kinds of pin.
const (
	// PinNone: evicted by policy.
	PinNone PinKind = iota
	// PinSoft: evicted only when nothing else can go.
	PinSoft
	// PinHard: never evicted. The chunks that are pinned so may hold a bounded
	// share of the memory.
	PinHard
)

// PinResult says what became of the chunks of a pin call.
type PinResult struct {
	Pinned int    // that are pinned so now
	Absent int    // that are not in memory whole
	Bytes  uint64 // of those that are pinned
}

// Scope selects chunks by all of its conditions together. The zero Scope selects
// nothing: all of the store is said by Everything.
type Scope struct {
	Everything bool
	// Namespace, if not nil, is the only one meant.
	Namespace *store.NamespaceID
	// SaltTag, if not nil, is the only one meant; "" is what has none.
	SaltTag *string
	// Hashes, if not empty, are the chunks meant, of every group. Needs a
	// namespace.
	Hashes []kv.Hash
	// Chain: with each of Hashes all that stands behind it in its chain.
	Chain bool
}

// Removal says what a control call has dropped.
type Removal struct {
	Chunks int
	Bytes  uint64 // that their slots took
	// Busy are chunks that were spared because they are in use or pinned. A scoped
	// removal spares none: what is being read is freed when the reader is done.
	Busy int
	// OnDisk are chunks that the disk had, as far as they could be counted; those of
	// which memory has shards count in Chunks too.
	OnDisk int
	// InCluster is how many times the cluster did not take a chunk's removal.
	InCluster int
}

// EvictLimit bounds an eviction by command; whichever is reached first ends it.
// 0 is no bound, but not for both.
type EvictLimit struct {
	Chunks int
	Bytes  uint64
}

// Owner is whose bytes a quota counts: a namespace's, or a salt tag's in all
// namespaces together.
type Owner struct {
	// Tag, if not empty, is the salt tag; else Namespace counts.
	Tag       string
	Namespace store.NamespaceID
}

// Usage is what an owner has in memory.
type Usage struct {
	Owner  Owner
	Chunks int    // with at least one shard
	Bytes  uint64 // of slots, open puts included
	Quota  uint64 // 0: none
	// Pinned is how much of Bytes is pinned hard.
	Pinned uint64
	// Refused counts puts that the quota refused.
	Refused uint64
}

// Prefix is a chain of chunks, for operators.
type Prefix struct {
	Namespace store.NamespaceID
	Group     uint32
	// Root and Leaf are its first and last chunk in memory. Root is the zero hash
	// if what came before is gone: then nothing of it can be hit.
	Root, Leaf kv.Hash
	Chunks     int // length of the path
	Bytes      uint64
	Hits       uint64 // references taken on its last chunk
}

// control is what the admin service may ask of a Master.
type control interface {
	// Pin pins those chunks that are in memory whole, until ttl has passed (0: for
	// ever) or they are unpinned. ErrPinBudget: nothing was pinned.
	Pin(ns store.NamespaceID, keys []store.ChunkKey, kind PinKind, ttl time.Duration) (PinResult, error)
	// Unpin leaves chunks to the policy again.
	Unpin(ns store.NamespaceID, keys []store.ChunkKey) (PinResult, error)
	// Remove drops the chunks of the scope.
	Remove(ctx context.Context, scope Scope) (Removal, error)
	// Evict drops what the policy would drop next.
	Evict(limit EvictLimit) (Removal, error)
	// SetQuota bounds an owner's bytes; 0 lifts the bound. What the owner has too
	// much goes with its next puts.
	SetQuota(owner Owner, bytes uint64) error
	// SetDefaultTTL sets how long chunks of a namespace that are stored from now on
	// live; 0: for ever.
	SetDefaultTTL(ns store.NamespaceID, ttl time.Duration) error
	// PrefetchAll asks the disk tier and the cluster for chunks, at their pace.
	// ErrNoTier: there is none.
	PrefetchAll(ctx context.Context, ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error)
	// TopPrefixes returns the n most used chains, the most used first.
	TopPrefixes(n int) []Prefix
	// Drain makes the store refuse puts, or take them again; it serves on.
	Drain(on bool)
	// UsageByNamespace and UsageByTag return who holds what.
	UsageByNamespace() []Usage
	UsageByTag() []Usage
}

var _ control = (*Master)(nil)
