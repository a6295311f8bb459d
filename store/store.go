// Package store declares what the roles need of a KV-chunk store. The embedded
// shared-memory store (store/embedded) and a Mooncake Store cluster
// (store/mooncake) implement it; the worker moves bytes, the store says where.
//
// Bytes never pass through the interface. A put is granted a place in a segment
// that the caller has mapped, the caller copies, and the put is ended; a get
// takes a reference on places, the caller copies out, and the reference is
// released. All calls are batched, with one answer a key; a call's error means
// that nothing is known of any of its keys.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Errors a caller branches on.
var (
	// ErrUnavailable: the store does not answer or the session with it is gone.
	// Puts are dropped, gets are reported as failed, and the caller tries again
	// with the next job.
	ErrUnavailable = errors.New("store unavailable")
	// ErrStaleNamespace: the namespace was reset or is not known to this
	// incarnation of the store; open it again.
	ErrStaleNamespace = errors.New("stale namespace")
	// ErrShardTooLarge: a shard of the namespace is larger than the store can
	// place.
	ErrShardTooLarge = errors.New("shard too large for the store")
)

// NamespaceID is the store's short name of an open namespace. It holds for one
// incarnation of the store.
type NamespaceID uint32

// Namespace is an open namespace.
type Namespace struct {
	ID NamespaceID
	// ResetEpoch counts the resets of the namespace. A put started under an
	// older one is refused at its end, so that a reset leaves nothing behind.
	ResetEpoch uint64
}

// MaxShards is the largest number of shards of a chunk.
const MaxShards = kv.MaxShards

// Tier says where the bytes of a shard are.
type Tier uint8

// The tiers, nearest first.
const (
	TierHost Tier = iota
	TierDisk
	TierRemote
)

// Place is a shard's position in a segment that the caller has mapped.
type Place struct {
	// Segment is the index of the segment in the session's list.
	Segment uint32
	// Offset is in bytes from the start of the segment's data.
	Offset uint64
	// Bytes is the length of the shard.
	Bytes uint32
}

// PutStatus is the answer to one PutItem.
type PutStatus uint8

const (
	// PutGranted: copy the shard to Place, then end or revoke Ticket.
	PutGranted PutStatus = iota + 1
	// PutExists: the shard is there.
	PutExists
	// PutNoSpace: no memory could be had without evicting something in use.
	PutNoSpace
	// PutRefused: admission said no, or the store takes no puts at present
	// (it is recovering).
	PutRefused
	// PutUnderway: another put of the shard is open. It may yet come to nothing,
	// so that the shard does not count as stored.
	PutUnderway
)

// Pin says how strongly a chunk is kept.
type Pin uint8

// The pins, weakest first.
const (
	PinNone Pin = iota
	PinSoft     // evicted when nothing else can go
	PinHard     // not evicted, as long as such chunks stay within their share
)

// PutOptions are what the items of one put have in common.
type PutOptions struct {
	// SaltTag is the tenant label for quotas and scoped removal, empty for none.
	SaltTag string
	// TTL is how long the chunks live, in whole seconds; 0: as long as the
	// namespace's do.
	TTL time.Duration
	Pin Pin
}

// PutItem asks for room for one shard of a chunk.
type PutItem struct {
	Group uint32
	Hash  kv.Hash
	// Parent is the chunk hash of the preceding chunk of the same group, zero
	// for the first. Eviction knows the chain by it.
	Parent kv.Hash
	// Depth is the chunk's index in its request, 0 for the first.
	Depth uint32
	// Shard is the caller's shard number.
	Shard uint32
}

// PutGrant answers one PutItem.
type PutGrant struct {
	Status PutStatus
	Ticket uint64
	Place  Place
}

// PutCommit publishes a granted put.
type PutCommit struct {
	Ticket uint64
	// Checksum is the CRC-32C of the shard's bytes as they stand in the segment.
	Checksum uint32
}

// GetStatus is the answer to one GetItem.
type GetStatus uint8

const (
	// GetReady: the bytes are at Place; release Ref when copied.
	GetReady GetStatus = iota + 1
	// GetAbsent: gone since the lookup.
	GetAbsent
	// GetLoading: a slower tier is being read; ask again.
	GetLoading
)

// GetItem asks for a reference on one shard of a chunk.
type GetItem struct {
	Group uint32
	Hash  kv.Hash
	Shard uint32
}

// GetResult answers one GetItem.
type GetResult struct {
	Status   GetStatus
	Ref      uint64
	Place    Place
	Checksum uint32
	Tier     Tier
}

// FailedChunk reports a chunk whose load failed, so that the next lookup misses
// it once and the engine does not ask for it for ever.
type FailedChunk struct {
	Group uint32
	Hash  kv.Hash
	// Corrupt: the bytes did not match their checksum; the chunk is dropped.
	Corrupt bool
}

// Store is a session with a chunk store. All methods are safe for concurrent
// use and return promptly after ctx is done.
type Store interface {
	// OpenNamespace makes the namespace known and returns its id.
	OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (Namespace, error)

	// PutStart asks for room for items; the grants are in their order.
	PutStart(ctx context.Context, ns Namespace, opts PutOptions, items []PutItem) ([]PutGrant, error)
	// PutEnd publishes. A chunk is visible once all its shards are. A false
	// answer means that the put was void (reset, or reclaimed) and the bytes
	// were dropped.
	PutEnd(ctx context.Context, ns Namespace, commits []PutCommit) ([]bool, error)
	// PutRevoke gives granted room back. A ticket that is unknown or whose put has
	// ended is ignored.
	PutRevoke(ctx context.Context, ns Namespace, tickets []uint64) error

	// Get takes a reference on each shard that is there. lease names the
	// (lookup socket, request) whose lease, if any, turns into references.
	Get(ctx context.Context, ns Namespace, lease Lease, items []GetItem) ([]GetResult, error)
	// AwaitArrival returns when a chunk of which Get said GetLoading is not on its way
	// any more, whatever became of it, and after atMost at the latest. An error means
	// that the store can't tell.
	AwaitArrival(ctx context.Context, ns Namespace, chunk ChunkKey, atMost time.Duration) error
	// Release drops references. A reference unknown to the store is ignored.
	Release(ctx context.Context, refs []uint64) error
	// ReportFailed makes chunks a miss once, or drops them.
	ReportFailed(ctx context.Context, ns Namespace, chunks []FailedChunk) error

	// Segments returns the mapped segments of the session, in the order that
	// Place.Segment counts. The slices are valid until Close.
	Segments() []Segment
}

// ChunkKey names a chunk of a namespace.
type ChunkKey struct {
	Group uint32
	Hash  kv.Hash
}

// Lease names the holder of a lease that a lookup granted.
type Lease struct {
	Engine  string
	Request string
}

// Segment is a mapped range of store memory.
type Segment interface {
	// Data returns the bytes that Place.Offset counts from.
	Data() []byte
}
