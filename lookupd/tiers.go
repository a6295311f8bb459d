package lookupd

import (
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

// tieredView is a View of a store with tiers below its memory.
type tieredView interface {
	// Slower tells whether a chunk that was answered as present is on a slower tier.
	Slower() bool
	// TierOf returns the tier of a chunk that was answered as present.
	TierOf(group int, hash kv.Hash) store.Tier
}

// lastingView is a View of a store whose chunks may have deadlines.
type lastingView interface {
	// Lasting tells whether no chunk of the store has a deadline at present.
	Lasting() bool
}

// lasting tells whether nothing has a deadline that the request at hand may find.
// A chunk that gets one afterwards was stored just now.
//
// REQUIRES: the view is open, and was asked nothing yet.
func (h *handler) lasting() bool {
	view, ok := h.view.(lastingView)
	return ok && view.Lasting()
}

// maxRuns bounds the parts that a hit is split into by tier; what is behind the
// last but one counts as the slowest tier's.
const maxRuns = 16

// tierNumbers are the tiers in answers.
var tierNumbers = [...]byte{store.TierHost: 1, store.TierDisk: 2, store.TierRemote: 3}

// appendTiers adds to the second frame of an answer which tiers the hit comes
// from. Tokens count as the slowest tier's of the chunks that a load of them
// fetches; all from memory needs no word.
//
// REQUIRES: the view is open.
func (h *handler) appendTiers(dst []byte, found *coordinator.Lookup) []byte {
	view, tiered := h.view.(tieredView)
	if !tiered || found.HitTokens == 0 || !view.Slower() {
		return dst
	}
	masks, err := h.rules.LoadMask(found.HitTokens)
	if err != nil {
		return dst // the lease will say so
	}
	unit := h.engine.spec.HashBlockTokens
	units := make([]store.Tier, (found.HitTokens+unit-1)/unit)
	for g, mask := range masks {
		scale := h.engine.spec.Groups[g].BlockTokens / unit
		for i := mask.First; i < mask.End(); i++ {
			at, ok := h.keyOf(found, g, i)
			if !mask.Has(i) || !ok {
				continue
			}
			if h.chaining {
				h.chain.mustKnow(at)
			}
			tier := view.TierOf(g, h.hashes.At(at))
			for u := i * scale; u < min((i+1)*scale, len(units)); u++ {
				units[u] = max(units[u], tier)
			}
		}
	}
	return appendRuns(dst, units, unit, found.HitTokens)
}

// keyOf returns the hash of a group's chunk in a hit.
func (h *handler) keyOf(found *coordinator.Lookup, group, chunk int) (at int, ok bool) {
	spec := &h.engine.spec
	at = h.rules.HashIndex(group, chunk)
	if block := spec.Groups[group].BlockTokens; chunk == (found.HitTokens+block-1)/block-1 {
		at = found.Tails[group].Tokens/spec.HashBlockTokens - 1
	}
	return at, at < h.hashes.Len()
}

// appendRuns writes the tiers of a hit's units as runs of tokens.
func appendRuns(dst []byte, units []store.Tier, unit, hitTokens int) []byte {
	for from, runs := 0, 1; from < len(units); runs++ {
		tier, to := units[from], from
		for to < len(units) && units[to] == tier {
			to++
		}
		if runs == maxRuns && to < len(units) {
			for ; to < len(units); to++ {
				tier = max(tier, units[to])
			}
		}
		dst = wire.AppendTier(dst, tierNumbers[tier], min(to*unit, hitTokens)-from*unit)
		from = to
	}
	return dst
}
