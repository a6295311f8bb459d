package coordinator

import (
	"fmt"
	"math"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Coordinator answers for one namespace. It is immutable, so any number of
// goroutines may use it.
type Coordinator struct {
	cfg    Config
	groups []group
	merged []mergedGroup
	// align is what hit lengths are multiples of.
	align int
	// fine: hits may end inside a block.
	fine bool
	// simple: full attention and one other merged group, for which one pass is
	// enough.
	simple bool
	// eagle: some group is flagged.
	eagle bool
	// blocked is why no hit can be computed at all, eagleBlocked why none can
	// with the EAGLE drop.
	blocked, eagleBlocked error
}

// group is a store group.
type group struct {
	rule   rule
	block  int // tokens a chunk covers
	scale  int // hash blocks a chunk covers
	window int
	merged int // index of the merged group
}

// mergedGroup is the store groups of equal spec: they hit and miss together.
type mergedGroup struct {
	rule   rule
	block  int
	scale  int
	window int
	eagle  bool
	// margin is how far beyond the current length the group looks when its last
	// unit is going to be dropped.
	margin int
	ids    []int
	// lookup is which chunks can take part in an aligned hit, of any length.
	lookup Mask
}

// New checks the configuration and merges its groups.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{cfg: cfg, align: cfg.SchedulerBlockTokens}
	if cfg.HitAlignmentTokens > 0 && cfg.HitAlignmentTokens < cfg.SchedulerBlockTokens {
		c.fine, c.align = true, cfg.HashBlockTokens
	}
	c.merge()
	c.flagEagle()
	for i := range c.merged {
		m := &c.merged[i]
		m.margin = m.block
		if c.fine && (m.rule == ruleFull || m.rule == ruleMamba) {
			m.margin = cfg.HashBlockTokens
		}
		m.lookup = Mask{N: math.MaxInt}
		if !c.fine && m.rule == ruleWindow {
			c.windowMask(&m.lookup, &c.groups[m.ids[0]], RetentionDense, nil)
		}
	}
	c.simple = len(c.merged) == 2 && c.merged[0].rule == ruleFull
	c.findBlocked()
	return c, nil
}

// merge joins the groups of equal spec and puts full attention first, otherwise
// in order of appearance.
func (c *Coordinator) merge() {
	type spec struct {
		kind          kv.SpecKind
		block, window int
		identity      string
	}
	position := map[spec]int{}
	var found []mergedGroup
	for id, g := range c.cfg.Groups {
		r, _ := ruleOf(g.Kind)
		scale := g.BlockTokens / c.cfg.HashBlockTokens
		key := spec{g.Kind, g.BlockTokens, g.WindowTokens, g.Identity}
		at, ok := position[key]
		if !ok {
			at = len(found)
			position[key] = at
			found = append(found, mergedGroup{rule: r, block: g.BlockTokens, scale: scale, window: g.WindowTokens})
		}
		found[at].ids = append(found[at].ids, id)
		found[at].eagle = found[at].eagle || g.Eagle
	}
	for _, full := range []bool{true, false} {
		for _, m := range found {
			if (m.rule == ruleFull) == full {
				c.merged = append(c.merged, m)
			}
		}
	}
	c.groups = make([]group, len(c.cfg.Groups))
	for i, m := range c.merged {
		for _, id := range m.ids {
			c.groups[id] = group{rule: m.rule, block: m.block, scale: m.scale, window: m.window, merged: i}
		}
	}
}

// flagEagle flags every merged group when the engine drafts and no group says
// which one the drafter reads.
func (c *Coordinator) flagEagle() {
	for _, m := range c.merged {
		c.eagle = c.eagle || m.eagle
	}
	if c.eagle || !c.cfg.UseEagle {
		return
	}
	c.eagle = true
	for i := range c.merged {
		c.merged[i].eagle = true
	}
}

// findBlocked looks for what the engine's chunked-local manager asserts.
func (c *Coordinator) findBlocked() {
	for _, m := range c.merged {
		if m.rule != ruleChunked {
			continue
		}
		if m.block != c.align && c.blocked == nil {
			c.blocked = fmt.Errorf("%w: group %d: chunked local attention wants blocks of the hit alignment, %d tokens, and has %d",
				ErrUnservable, m.ids[0], c.align, m.block)
		}
		if m.eagle && c.eagleBlocked == nil {
			c.eagleBlocked = fmt.Errorf("%w: group %d: chunked local attention can't be combined with EAGLE", ErrUnservable, m.ids[0])
		}
	}
}

// Servable reports why every lookup of this configuration would fail; a
// registration should be refused with it.
func (c *Coordinator) Servable() error {
	if c.blocked != nil {
		return c.blocked
	}
	return c.eagleBlocked
}

// NumGroups returns the number of store groups.
func (c *Coordinator) NumGroups() int { return len(c.groups) }

// FineGrained reports whether hits may end inside a block.
func (c *Coordinator) FineGrained() bool { return c.fine }

// Alignment returns the tokens that hit lengths are multiples of.
func (c *Coordinator) Alignment() int { return c.align }

// AlignLookupLength rounds a length down to the hit alignment.
func (c *Coordinator) AlignLookupLength(numTokens int) int {
	if numTokens < 0 {
		return 0
	}
	return numTokens / c.align * c.align
}

// HashIndex returns the index of the hash that keys a chunk of a group.
//
// REQUIRES: group is a store group.
func (c *Coordinator) HashIndex(group, chunk int) int {
	return (chunk+1)*c.groups[group].scale - 1
}

// ChainGroup returns a group whose chunks are looked for from the first on, and how
// many hash blocks each covers: of all such groups the one with the smallest.
// Whatever else a lookup asks for has the hash of one of its chunks. ok is false
// where no group is like that.
func (c *Coordinator) ChainGroup() (group, step int, ok bool) {
	for id, g := range c.groups {
		if g.rule == ruleFull && (!ok || g.scale < step) {
			group, step, ok = id, g.scale, true
		}
	}
	if !ok || step == 1 {
		return group, step, ok
	}
	for _, g := range c.groups {
		if c.fine || g.scale%step != 0 {
			return 0, 0, false
		}
	}
	return group, step, true
}
