package worker

import (
	"context"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// Device is the memory that an engine's KV cache lives in. The host device maps
// the engine's shared memory; the cuda device maps GPU memory.
type Device interface {
	// Map makes a registered KV cache reachable. pid is the engine process as the
	// kernel names it, whatever it says of itself. The descriptors, at the
	// indices that the regions name, belong to the callee from here on, error or
	// not; -1 stands for one that is another's.
	//
	// REQUIRES: reg has passed its checks, CheckGeometry included.
	Map(pid int, reg *connector.Register, fds []int) (Mapping, error)
}

// Mapping is one engine rank's KV cache as the daemon sees it. It is closed the
// moment the engine is gone.
type Mapping interface {
	// Copy enqueues a batch of shard copies and returns at once; done is called
	// exactly once, from any goroutine, when every byte has been moved or the
	// batch has failed and nothing of it is under way. after is the engine's event that must have completed
	// before the first byte of the KV cache is read or written; nil for none. ctx.Err is asked before every
	// shard, or before every few that are enqueued together; it may look at the job board, and be asked from any goroutine.
	//
	// REQUIRES: every block id is in [1, NumBlocks) and every Memory is at least
	// as long as the group's shard.
	Copy(ctx context.Context, direction Direction, after Event, batch []ShardCopy, done func(error))
	// Close waits for the copies that were enqueued and unmaps. Copies that wait for
	// an event are ended by their ctx.
	Close() error
}

// SizedMapping is a Mapping that wants other pieces than host memory does: each is
// waited for before the next, which costs a GPU more.
type SizedMapping interface {
	Mapping
	// PieceBytes returns what a load and a store copy at a time.
	PieceBytes() (load, store int)
}

// GivingWay is a Mapping that can end a store's batch early, for those who come
// first: so what a store copies at a time need not be small when nobody else is
// there, which costs a hand-over between threads each time.
type GivingWay interface {
	Mapping
	// CopyWhile is Copy of a store's batch, in order. Before every shard but the first
	// goOn is asked, on the thread that copies: it must return at once. done is told how
	// many shards were copied, all of them or as many as goOn allowed.
	CopyWhile(ctx context.Context, after Event, batch []ShardCopy, goOn func(copied int) bool, done func(copied int, err error))
}

// EventMapping is a Mapping that may be without the events that the registration
// brought.
type EventMapping interface {
	Mapping
	// HasEvents reports whether they are known here. If not, whatever an engine means
	// by one fails its job.
	HasEvents() bool
}

// Event is an engine-side event: its number (int) in the ring that the registration
// brought.
type Event any

// Direction of a copy.
type Direction uint8

const (
	// Store copies from the KV cache to the store's memory.
	Store Direction = iota + 1
	// Load copies from the store's memory to the KV cache.
	Load
)

// ShardCopy moves one block's shard between the KV cache and store memory. In
// store memory the shard is contiguous: its KV segments one after the other, as the in-tree connector concatenates its buffers.
type ShardCopy struct {
	Group int
	// Shard counts the shards that the rank holds of the group, from 0.
	Shard   int
	BlockID uint32
	Memory  []byte
	// Checksum is filled by the copy: the CRC-32C of the shard's bytes as they were
	// written to the destination.
	Checksum uint32
}
