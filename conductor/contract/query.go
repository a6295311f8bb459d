package contract

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// Query asks how much of a prompt each rank holds.
type Query struct {
	Model, LoRA string
	// Tenant is prefixindex.DefaultTenant where none was named.
	Tenant string
	// Instance, when not empty, is the only one that is wanted.
	Instance string
	// BlockTokens is the size of a block; 0 takes each engine's.
	BlockTokens int
	// CacheSalt is cache_salt of the API: the salt of the request, and in place of it the
	// additional salt that engines were registered with, for which Mooncake Conductor takes
	// it. Without AdditionalSalt a query with a salt asks engines that have none for blocks
	// with that salt, and engines that have that salt for blocks without.
	CacheSalt string
	// AdditionalSalt, where HasAdditionalSalt, is that of the engines that are asked, and
	// CacheSalt is the request's alone.
	AdditionalSalt    string
	HasAdditionalSalt bool
	// Tokens are the prompt's, little-endian in 32 bits. They are the caller's again when
	// the query has returned.
	Tokens []byte
	// Hashes, in place of tokens when not nil, are what engines call the prompt's blocks.
	Hashes []kvevents.Hash
}

// TokenCount is how many tokens are asked about.
func (q *Query) TokenCount() int {
	if q.Hashes != nil {
		return len(q.Hashes) * max(q.BlockTokens, 0)
	}
	return len(q.Tokens) / 4
}

// RankMatch is how much of a prompt one rank holds, and how sure that is.
type RankMatch struct {
	prefixindex.Match
	// State of what is known of the rank: of the worst of its services where there are
	// several.
	State State
	// Since is the sequence number from which on all is known, where State is Incomplete
	// and something is.
	Since uint64
	// Foreign: the rank is registered for another model or block size than the query's, and
	// a request would not be sent there.
	Foreign bool
}

// ModelContext is what blocks must have in common to be one prefix's, for an instance.
type ModelContext struct {
	Model, LoRA    string
	BlockTokens    int
	AdditionalSalt string
	Tenant         string
	Instance       string
}

// HashPair is a block's name among engines and in the index.
type HashPair struct{ Engine, Index uint64 }

// View is what an index knows, for people who look for a fault.
type View struct {
	Contexts []ModelContext
	// Hashes are those of some blocks.
	Hashes []HashPair
	// Truncated: there are more.
	Truncated bool
}

// Stats are an index's figures.
type Stats struct {
	// Blocks are the blocks that are known, Bytes what they take, MaxBytes what they may
	// (0: no bound).
	Blocks          uint64
	Bytes, MaxBytes int64
	// Queries were answered; TokensAsked and TokensMatched are what they asked about and
	// what the best rank of each had.
	Queries, TokensAsked, TokensMatched uint64
	// Left has the counters of the services that were unregistered, summed up, and Leavers is
	// how many those are: counters of all streams together do not fall when one of them ends.
	Left    Status
	Leavers uint64
	// Snapshots are those that are kept from one start to the next.
	Snapshots Snapshots
}

// Snapshots say how the keeping of an index goes.
type Snapshots struct {
	// Interval is how often one is written; 0: none is.
	Interval time.Duration
	// Age is how long ago one was written; before the first, how long ago this process began.
	Age time.Duration
	// Written and Failed are since this process began.
	Written, Failed uint64
}
