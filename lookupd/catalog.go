package lookupd

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Catalog is what lookups need of the store. It is safe for concurrent use.
type Catalog interface {
	// OpenNamespace makes the namespace known, and returns the name of its present
	// generation. Its error says what to do, and is
	// store.ErrShardTooLarge when a shard fits nowhere.
	OpenNamespace(spec *kv.NamespaceSpec) (store.Namespace, error)
	// View begins one lookup. The caller closes the view soon, and calls no other
	// method of the catalog before: the view may hold a lock.
	View(ns store.NamespaceID) View
	// Ask finds out about chunks of which a view said kv.Unknown, so that views that
	// begin later know. It may wait as long as ctx lets it.
	Ask(ctx context.Context, ns store.NamespaceID, chunks []store.ChunkKey) error
	// Grant keeps the chunks from being evicted for ttl, or until released. The
	// holder's earlier lease is replaced. Leases beyond the store's share for them
	// are cut short without a word. chunks is the caller's again afterwards.
	Grant(ns store.NamespaceID, holder store.Lease, chunks []store.ChunkKey, ttl time.Duration)
	// ReleaseLeases gives up leases of an engine's requests; unknown ones are
	// ignored.
	ReleaseLeases(engine string, requests []string)
	// ReleaseEngine gives up all leases of an engine.
	ReleaseEngine(engine string)
	// Reset drops the chunks of one namespace and begins a new generation of it.
	// Puts that are under way end void. Whoever holds the catalog calls
	// Server.NamespaceReset then, whoever asked for it.
	Reset(ns store.NamespaceID) error
}

// View is one lookup's sight of the catalog, which may change meanwhile.
type View interface {
	// Exists tells whether the chunk, all its shards, can be loaded.
	Exists(group int, hash kv.Hash) kv.Existence
	// Ahead tells which chunks will be asked next: those of the hashes from one
	// on, in their order. The view answers for the first of them at once: present
	// are there, and Exists need not be asked. For told chunks in all the hint was
	// taken; 0 for no more of it.
	Ahead(group int, hashes kv.HashBlob, from int) (told, present int)
	// Ancestors finds out the hashes of the chunks that come before one in its chain:
	// before group's chunk with the hash at index at in data, hashes of length bytes
	// each, count of them, their hashes step apart. It writes found into data, the
	// nearest first. Of these and the chunk itself the nearest present are there, and
	// Exists need not be asked. stray: they are to be asked for by their hashes.
	// Where a chunk comes before all of those, data has its hash.
	Ancestors(group int, data []byte, length, at, step, count int) (found, present int, stray bool)
	// Close ends the lookup.
	Close()
	// Abandon ends it as if it had not been, as far as that can be: there was no
	// answer, and the same is asked again.
	Abandon()
}
