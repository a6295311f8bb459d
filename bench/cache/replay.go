package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// Order is the order in which a request's blocks are touched and inserted.
type Order string

// Orders.
const (
	// Forward begins with the root.
	Forward Order = "fwd"
	// Reverse begins with the leaf, as the daemon's loads do.
	Reverse Order = "rev"
)

// ErrArgument: a replay was asked for that there is none of.
var ErrArgument = errors.New("wrong argument")

// Replay runs the trace against a policy for at least capacity records. progress
// may be nil; it is told the requests done.
func Replay(ctx context.Context, t *Trace, policy evict.Policy, capacity int, order Order, progress func(done int)) (Result, error) {
	if capacity < 1 {
		return Result{}, fmt.Errorf("%w: a capacity of %d blocks; want 1 or more", ErrArgument, capacity)
	}
	if order != Forward && order != Reverse {
		return Result{}, fmt.Errorf("%w: order %q; want %s or %s", ErrArgument, order, Forward, Reverse)
	}
	c := newResidents(t, policy, capacity)
	result := Result{Policy: policy.Name(), Order: order, Capacity: capacity}
	for i := range t.requests {
		if i%256 == 0 {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			if progress != nil {
				progress(i)
			}
		}
		r := &t.requests[i]
		blocks := t.blocks[r.begin:r.end]
		hits, resident := c.lookup(blocks)
		result.count(len(blocks), hits, resident, r.tokens)
		for j := range blocks {
			if order == Reverse {
				j = len(blocks) - 1 - j
			}
			c.use(blocks[j])
		}
	}
	result.finish()
	return result, nil
}

// residents are the blocks in the replayed store. A policy knows them by record.
type residents struct {
	trace  *Trace
	policy evict.Policy
	record []uint32 // by block; none if it is not resident
	block  []uint32 // by record
	free   []uint32
}

func newResidents(t *Trace, policy evict.Policy, capacity int) *residents {
	capacity = min(capacity, t.Unique())
	c := &residents{trace: t, policy: policy, record: make([]uint32, t.Unique()), block: make([]uint32, capacity), free: make([]uint32, capacity)}
	for i := range c.record {
		c.record[i] = none
	}
	for i := range c.free {
		c.free[i] = uint32(capacity - 1 - i)
	}
	return c
}

func (c *residents) lookup(blocks []uint32) (hits, resident int) {
	for i, b := range blocks {
		if c.record[b] != none {
			resident++
			if hits == i {
				hits++
			}
		}
	}
	return hits, resident
}

func (c *residents) use(block uint32) {
	if rec := c.record[block]; rec != none {
		c.policy.Touch(rec)
		return
	}
	if len(c.free) == 0 {
		rec, ok := c.policy.Victim(func(uint32) bool { return false })
		if !ok {
			panic("BUG: the policy has no victim although nothing is in use")
		}
		c.record[c.block[rec]] = none
		c.free = append(c.free, rec)
	}
	rec := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.record[block], c.block[rec] = rec, block
	l := &c.trace.chain[block]
	chunk := evict.Chunk{Key: keyOf(block), Depth: l.depth}
	if l.parent != none {
		chunk.Parent = keyOf(l.parent)
	}
	c.policy.Insert(rec, chunk)
}

// keyOf makes a key digest of a block's number, as evenly spread as a hash's
// (the finaliser of SplitMix64).
func keyOf(block uint32) uint64 {
	x := (uint64(block) + 1) * 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
