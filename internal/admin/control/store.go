package control

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Store is the store as an operator's calls need it; embedded.Master is one. Its
// methods are safe for concurrent use.
type Store interface {
	Namespaces() []embedded.NamespaceEntry
	Inspect(ns store.NamespaceID, groups []uint32, hashes []kv.Hash) ([]embedded.ChunkState, error)
	UsageByNamespace() []embedded.Usage
	UsageByTag() []embedded.Usage
	TopPrefixes(n int) []embedded.Prefix

	Evict(limit embedded.EvictLimit) (embedded.Removal, error)
	Pin(ns store.NamespaceID, keys []store.ChunkKey, kind embedded.PinKind, ttl time.Duration) (embedded.PinResult, error)
	Unpin(ns store.NamespaceID, keys []store.ChunkKey) (embedded.PinResult, error)
	PrefetchAll(ctx context.Context, ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error)
	Remove(ctx context.Context, scope embedded.Scope) (embedded.Removal, error)
	// Reset begins a new generation of a namespace: what engines have computed
	// before it is not stored any more.
	Reset(ns store.NamespaceID) error
	SetQuota(owner embedded.Owner, bytes uint64) error
	SetDefaultTTL(ns store.NamespaceID, ttl time.Duration) error
	Drain(on bool)
}

// Stats is the state of the store and of what goes with it.
type Stats struct {
	embedded.Stats
	// MissRatios are by rising factor.
	MissRatios []MissRatio
	// Counters are those of the store and of the lookups, by name.
	Counters map[string]uint64
}

// MissRatio is what another amount of memory would have brought.
type MissRatio struct{ MemoryFactor, Ratio float64 }
