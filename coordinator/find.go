package coordinator

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// ExistsFunc says whether the chunk of a store group is stored under the hash of
// that index. It is asked for group in [0, NumGroups) and hashIndex in
// [0, numHashes), several times for one index.
type ExistsFunc func(group, hashIndex int) kv.Existence

const present = kv.Present

// Hit is a joint hit of all groups.
type Hit struct {
	// Tokens is the hit length with every answer that is not Present taken for
	// a miss; it may be used as it is.
	Tokens int
	// Pending: some answer on the way was Loading or Unknown, so that the hit
	// may be longer once it is known.
	Pending bool
	// Asks is what the caller must ask the store for, where some answer was
	// Unknown, before it repeats the question. Nil otherwise.
	Asks []Ask
}

// finder is one evaluation of the rules. It lives on the stack.
type finder struct {
	c         *Coordinator
	exists    ExistsFunc // nil: everything is there
	align     int
	numHashes int
	// bound is the first hash index that counts as absent unasked.
	bound int
	// masked: a chunk outside its group's lookup mask counts as absent unasked.
	masked  bool
	pending bool
	unknown bool
	runs    [maxGroups]run // by merged group
}

// HitLength returns the joint hit over at most maxTokens tokens. applyEagle is
// true for lookups, false where the length has been reduced already. A nil
// exists stands for a store that has everything.
//
// REQUIRES: numHashes >= 0, maxTokens >= 0.
func (c *Coordinator) HitLength(numHashes, maxTokens int, applyEagle bool, exists ExistsFunc) (Hit, error) {
	if err := c.checkFind(numHashes, maxTokens, applyEagle); err != nil {
		return Hit{}, err
	}
	f := finder{c: c, exists: exists, align: c.align, numHashes: numHashes, bound: numHashes}
	tokens := f.find(maxTokens, applyEagle)
	return Hit{Tokens: tokens, Pending: f.pending, Asks: f.asks()}, nil
}

// Find is HitLength that also returns, by group, which chunks the hit needs.
func (c *Coordinator) Find(numHashes, maxTokens int, applyEagle bool, exists ExistsFunc) (Hit, []Mask, error) {
	if err := c.checkFind(numHashes, maxTokens, applyEagle); err != nil {
		return Hit{}, nil, err
	}
	f := finder{c: c, exists: exists, align: c.align, numHashes: numHashes, bound: numHashes}
	tokens := f.find(maxTokens, applyEagle)
	return Hit{Tokens: tokens, Pending: f.pending, Asks: f.asks()}, f.loadMasks(), nil
}

func (c *Coordinator) checkFind(numHashes, maxTokens int, applyEagle bool) error {
	if numHashes < 0 || maxTokens < 0 {
		return fmt.Errorf("%w: %d hashes, %d tokens", ErrArgument, numHashes, maxTokens)
	}
	if c.blocked != nil {
		return c.blocked
	}
	if applyEagle {
		return c.eagleBlocked
	}
	return nil
}

// find runs the rules to their fixed point and returns the joint hit. Lengths
// behind the last hash are cut off first: the engine's managers index past the
// hashes there.
//
// The order of the groups and the place of every assignment matter: a group may
// look a margin beyond the current length, so that the length can grow back
// within a pass.
func (f *finder) find(maxTokens int, applyEagle bool) int {
	c := f.c
	limit := f.numHashes * c.cfg.HashBlockTokens
	maxTokens = min(maxTokens, limit)
	if len(c.merged) == 1 {
		m := &c.merged[0]
		f.runs[0] = f.one(m, maxTokens, applyEagle && m.eagle)
		return f.runs[0].tokens
	}
	var verified [maxGroups]bool
	hit := maxTokens
	for pass := 0; ; pass++ {
		current := hit
		for i := range c.merged {
			m := &c.merged[i]
			if m.rule == ruleFull && pass > 0 {
				// A leading run only has to be cut.
				current = min(current, f.runs[i].tokens)
				continue
			}
			drop := applyEagle && m.eagle && !verified[i]
			bound := current
			if drop && m.rule != ruleMamba {
				bound = min(current+m.margin, limit)
			}
			f.runs[i] = f.one(m, bound, drop)
			if drop {
				verified[i] = true
			} else if f.runs[i].tokens < current {
				verified = [maxGroups]bool{}
			}
			current = f.runs[i].tokens
		}
		if current >= hit {
			break
		}
		hit = current
		if c.simple {
			break
		}
	}
	for i := range c.merged {
		if m := &c.merged[i]; m.rule == ruleFull {
			f.runs[i].n = min(f.runs[i].n, ceilDiv(hit, m.block))
		}
	}
	return hit
}

// one applies a merged group's rule.
func (f *finder) one(m *mergedGroup, maxTokens int, drop bool) run {
	switch m.rule {
	case ruleFull:
		return f.fullHit(m, maxTokens, drop)
	case ruleWindow:
		return f.windowHit(m, maxTokens, drop)
	case ruleChunked:
		return f.chunkedHit(m, maxTokens)
	}
	return f.mambaHit(m, maxTokens)
}

// present reports whether every group of m has the hash. chunk is the chunk the
// hash keys, -1 where it may be a boundary inside one. What is neither present
// nor absent is noted and counts as absent.
func (f *finder) present(m *mergedGroup, hashIndex, chunk int) bool {
	if hashIndex >= f.bound {
		return false
	}
	if f.exists == nil {
		return true
	}
	if f.masked && chunk >= 0 && !m.lookup.Has(chunk) {
		return false
	}
	all, loading, unknown := true, false, false
	for _, g := range m.ids {
		switch f.exists(g, hashIndex) {
		case kv.Present:
			continue
		case kv.Loading:
			loading = true
		case kv.Unknown:
			unknown = true
		default:
			return false
		}
		all = false
	}
	f.pending = f.pending || loading || unknown
	f.unknown = f.unknown || unknown
	return all
}

// loadMasks returns the runs by store group.
func (f *finder) loadMasks() []Mask {
	masks := make([]Mask, len(f.c.groups))
	for g := range masks {
		r := f.runs[f.c.groups[g].merged]
		masks[g] = Mask{First: r.first, N: r.n - r.first}
	}
	return masks
}
