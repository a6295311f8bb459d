package router

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Index says who holds which prefix. It is safe for concurrent use, and waits for
// nothing.
type Index interface {
	// Services are those whose events are followed.
	Services() []contract.Status
	// Query appends a match for each rank of each instance.
	Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch
}

// Prefix is the beginning of prompts that a store is to keep.
type Prefix struct {
	// Model, LoRA and CacheSalt as the engines' requests have them.
	Model, LoRA, CacheSalt string
	// Tokens, little-endian in 32 bits.
	Tokens []byte
	// BlockTokens of the engines' blocks.
	BlockTokens int
}

// Stores are the stores behind engines, by instance. A store that can't be told is
// ErrNoStore; what it keeps is then kept by asking its engine for it.
type Stores interface {
	// Pin keeps what is there of a prefix for ttl(), and says how many tokens it has. ttl is
	// asked, once or more, while no other Pin or Unpin of the store is under way, and none is
	// until it is done; without a time nothing is pinned.
	Pin(ctx context.Context, instance string, p *Prefix, ttl func() time.Duration) (tokens int, err error)
	// Unpin lets go of it, but for its first keep() tokens. keep is asked as ttl is.
	Unpin(ctx context.Context, instance string, p *Prefix, keep func() (tokens int)) error
	// Prefetch brings it into memory.
	Prefetch(ctx context.Context, instance string, p *Prefix) error
}
