package coordinator

import (
	"fmt"
	"math"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// TailKeyBoundary names the hash under which a group's last chunk is stored:
// the one over Tokens tokens.
type TailKeyBoundary struct {
	Group  int
	Tokens int
}

// Lookup is the answer to an engine's lookup.
type Lookup struct {
	// HitTokens is the reusable prefix, below the request's length. Answers
	// that are not Present were taken for misses.
	HitTokens int
	// Tails has one entry a group for a nonzero hit.
	Tails []TailKeyBoundary
	// Pending: some answer on the way was Loading or Unknown, so that the hit
	// may be longer once it is known.
	Pending bool
	// Asks is what must be asked of the store before the lookup is repeated;
	// nil when nothing was Unknown.
	Asks []Ask
}

// Ask is a range of chunks of one group that the store must be asked for: the
// hash indices First, First+Step, ... below End.
type Ask struct {
	Group            int
	First, End, Step int
	mask             Mask
}

// Each calls yield for the hash indices until it returns false. It has the form
// of an iterator.
func (a Ask) Each(yield func(hashIndex int) bool) {
	for i := a.First; i < a.End; i += a.Step {
		if a.mask.Has(i/a.Step) && !yield(i) {
			return
		}
	}
}

// Lookup answers how much of a request of numTokens tokens with numHashes block
// hashes is stored. A hit of the whole request is derived again below its end,
// because the last token must be computed for sampling.
func (c *Coordinator) Lookup(numTokens, numHashes int, exists ExistsFunc) (Lookup, error) {
	return c.LookupInto(nil, numTokens, numHashes, exists)
}

// LookupInto is Lookup that appends the tails to a buffer of the caller's.
func (c *Coordinator) LookupInto(tails []TailKeyBoundary, numTokens, numHashes int, exists ExistsFunc) (Lookup, error) {
	if exists == nil {
		return Lookup{}, fmt.Errorf("%w: a lookup without an existence function", ErrArgument)
	}
	if length := c.AlignLookupLength(numTokens); length > 0 && numHashes != 0 {
		if err := c.checkFind(numHashes, length, true); err != nil {
			return Lookup{}, err
		}
	}
	return c.answer(tails, numTokens, numHashes, exists), nil
}

// answer is LookupInto of what was checked.
func (c *Coordinator) answer(tails []TailKeyBoundary, numTokens, numHashes int, exists ExistsFunc) Lookup {
	length := c.AlignLookupLength(numTokens)
	if length == 0 || numHashes == 0 {
		return Lookup{}
	}
	f := finder{c: c, exists: exists, align: c.align, numHashes: numHashes, masked: true}
	f.bound = min(numHashes, length/c.cfg.HashBlockTokens)
	hit := f.find(length, true)
	if hit >= numTokens {
		hit = 0
		if usable := c.AlignLookupLength(numTokens - 1); usable > 0 {
			hit = f.find(usable, true)
		}
	}
	pending, unknown := f.pending, f.unknown
	tails, ok := f.tails(tails, hit)
	if !ok || !f.chunksFrom(hit) {
		hit, tails = 0, nil
	} else {
		// The hit stands, whatever the boundaries that were passed over are.
		f.pending, f.unknown = pending, unknown
	}
	return Lookup{HitTokens: hit, Tails: tails, Pending: f.pending, Asks: f.asks()}
}

// tails returns the hash boundary of each group's last chunk. It is the hit
// itself where that hash is stored or where a load fills no chunk there (chunked
// local attention, when the hit ends an attention chunk), else the next stored
// boundary inside the chunk. ok is false when there is none; the hit can't be
// loaded then.
func (f *finder) tails(dst []TailKeyBoundary, hit int) (tails []TailKeyBoundary, ok bool) {
	if hit == 0 {
		return dst, true
	}
	h := f.c.cfg.HashBlockTokens
	for id := range f.c.groups {
		g := &f.c.groups[id]
		at := hit/h - 1
		chunk := ceilDiv(hit, g.block) - 1
		tail := hit
		loaded := chunk >= f.runs[g.merged].first || g.rule == ruleWindow
		if loaded && !f.stored(id, at) {
			end := min((chunk+1)*g.scale, f.bound)
			at++
			for at < end && !f.stored(id, at) {
				at++
			}
			if at >= end {
				return dst, false
			}
			tail = (at + 1) * h
		}
		dst = append(dst, TailKeyBoundary{Group: id, Tokens: tail})
	}
	return dst, true
}

// chunksFrom reports whether a chunked-local hit has what its last attention
// chunk needs. Where attention chunks do not end on blocks, the rule takes a
// block that two of them share for given, and the engine asserts or asks for
// blocks that are not there.
func (f *finder) chunksFrom(hit int) bool {
	for id := range f.c.groups {
		g := &f.c.groups[id]
		if g.rule != ruleChunked || g.window%g.block == 0 {
			continue
		}
		for i := hit / g.window * g.window / g.block; i < hit/g.block; i++ {
			if !f.stored(id, (i+1)*g.scale-1) {
				return false
			}
		}
	}
	return true
}

// stored reports whether one group has the hash, and takes note of a pending
// answer.
func (f *finder) stored(group, hashIndex int) bool {
	g := &f.c.groups[group]
	if hashIndex >= f.bound || !f.c.merged[g.merged].lookup.Has(hashIndex/g.scale) {
		return false
	}
	answer := f.exists(group, hashIndex)
	f.pending = f.pending || answer == kv.Loading || answer == kv.Unknown
	f.unknown = f.unknown || answer == kv.Unknown
	return answer == kv.Present
}

// asks returns everything that an exact answer can depend on, group by group, so
// that one round trip to the store is enough.
func (f *finder) asks() []Ask {
	if !f.unknown {
		return nil
	}
	asks := make([]Ask, len(f.c.groups))
	for i := range asks {
		g := &f.c.groups[i]
		asks[i] = Ask{Group: i, First: g.scale - 1, End: f.bound, Step: g.scale, mask: Mask{N: math.MaxInt}}
		if f.masked {
			asks[i].mask = f.c.merged[g.merged].lookup
		}
		if f.c.fine && (g.rule == ruleFull || g.rule == ruleMamba) {
			asks[i].First, asks[i].Step = 0, 1
		}
	}
	return asks
}
