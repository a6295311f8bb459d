package cache

import (
	"container/heap"
	"context"
	"fmt"
	"math"
)

// MIN is the name of the upper limit in results.
const MIN = "min"

// never is the next use of a block that is not asked for again.
const never = math.MaxInt32

// Best replays the trace against Belady's rule with bypass, the upper limit of
// what any policy of that capacity can hit: after a request, of what is resident
// and what it brought, stays what is asked for soonest; among equals the
// shallower block. Who asks for a block asks for those before it in the same
// request, so what stays is always whole chains.
func Best(ctx context.Context, t *Trace, capacity int, progress func(done int)) (Result, error) {
	if capacity < 1 {
		return Result{}, fmt.Errorf("%w: a capacity of %d blocks; want 1 or more", ErrArgument, capacity)
	}
	following := nextUses(t)
	next := make([]int32, t.Unique()) // of resident blocks; 0 for the others
	far := &farthest{}
	result := Result{Policy: MIN, Capacity: capacity}
	resident := 0
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
		hits, found := 0, 0
		for j, b := range blocks {
			if next[b] != 0 {
				found++
				if hits == j {
					hits++
				}
			} else {
				resident++
			}
			next[b] = following[r.begin+j]
			heap.Push(far, use{next[b], t.chain[b].depth, b})
		}
		result.count(len(blocks), hits, found, r.tokens)
		for resident > capacity {
			u, ok := heap.Pop(far).(use)
			if ok && next[u.block] == u.next {
				next[u.block] = 0
				resident--
			}
		}
	}
	result.finish()
	return result, nil
}

// nextUses returns, by place in t.blocks, the request that asks for the block
// next.
func nextUses(t *Trace) []int32 {
	uses := make([]int32, len(t.blocks))
	next := make([]int32, t.Unique())
	for i := range next {
		next[i] = never
	}
	for i := len(t.requests) - 1; i >= 0; i-- {
		for at := t.requests[i].begin; at < t.requests[i].end; at++ {
			b := t.blocks[at]
			uses[at], next[b] = next[b], int32(i)
		}
	}
	return uses
}

// use is a block's next one. A block has an entry for every request that asked
// for it; those of the past are skipped when they come up.
type use struct {
	next  int32
	depth uint32
	block uint32
}

// farthest is a heap with the use at the top that is to go first.
type farthest []use

func (f farthest) Len() int      { return len(f) }
func (f farthest) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f farthest) Less(i, j int) bool {
	if f[i].next != f[j].next {
		return f[i].next > f[j].next
	}
	return f[i].depth > f[j].depth
}

// Push implements heap.Interface.
func (f *farthest) Push(x any) {
	if u, ok := x.(use); ok {
		*f = append(*f, u)
	}
}

// Pop implements heap.Interface.
func (f *farthest) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}
