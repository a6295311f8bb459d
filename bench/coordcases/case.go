package coordcases

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Operations of a case.
const (
	OpFind       = "find"
	OpStoreMask  = "store_mask"
	OpLookupMask = "lookup_mask"
	OpLookup     = "lookup"
)

// Limits of a case. Real requests stay far below: a million tokens in blocks of
// 16 are 65,536 hashes.
const (
	maxGroups = 64
	maxHashes = 1 << 20
	maxTokens = 1 << 24
	maxChunks = 1 << 22 // over all groups
)

// ErrCase reports a case that can't be read.
var ErrCase = errors.New("malformed case")

// Case is one question.
type Case struct {
	Op       string  `json:"op"`
	Groups   []Group `json:"groups"`
	L        int     `json:"L"`
	H        int     `json:"h"`
	UseEagle bool    `json:"use_eagle"`
	Fine     bool    `json:"fine"`

	N          int       `json:"N"`
	Exists     *[][2]int `json:"exists"`
	M          int       `json:"M"`
	ApplyEagle bool      `json:"apply_eagle"`

	R       *int `json:"R"`
	T       int  `json:"T"`
	Start   int  `json:"start"`
	NPrompt *int `json:"nprompt"`

	Tokens int `json:"tokens"`
}

// Group is a KV-cache group of a case.
type Group struct {
	Kind  string `json:"kind"`
	B     int    `json:"b"`
	W     int    `json:"w"`
	Eagle bool   `json:"eagle"`
	// Tag only makes the specs of two groups unequal.
	Tag int `json:"tag"`
	// Layers is the number of layers of a uniform-type group, 0 for one spec for
	// the group; the rules do not read it.
	Layers int `json:"layers,omitempty"`
}

// kindOf spells a kind out; a case may have the short spelling or kv's own.
func kindOf(name string) kv.SpecKind {
	switch name {
	case "full":
		return kv.FullAttention
	case "mla":
		return kv.MLAAttention
	case "hidden":
		return kv.HiddenState
	case "sink":
		return kv.SinkFullAttention
	case "swa":
		return kv.SlidingWindow
	case "swa_mla":
		return kv.SlidingWindowMLA
	case "chunked":
		return kv.ChunkedLocal
	case "mamba":
		return kv.MambaAlign
	}
	return kv.SpecKind(name)
}

// Config returns the coordinator's configuration of the case.
func (c *Case) Config() coordinator.Config {
	cfg := coordinator.Config{
		Groups:               make([]kv.GroupSpec, len(c.Groups)),
		HashBlockTokens:      c.H,
		SchedulerBlockTokens: c.L,
		HitAlignmentTokens:   c.L,
		UseEagle:             c.UseEagle,
		RetentionTokens:      coordinator.RetentionDense,
	}
	if c.Fine {
		// A hash block as large as the scheduler block has nothing finer.
		cfg.HitAlignmentTokens = c.H
	}
	if c.R != nil {
		cfg.RetentionTokens = *c.R
	}
	for i, g := range c.Groups {
		cfg.Groups[i] = kv.GroupSpec{Kind: kindOf(g.Kind), BlockTokens: g.B, WindowTokens: g.W, Eagle: g.Eagle, Identity: strconv.Itoa(g.Tag)}
	}
	return cfg
}

// check reports the first field that is out of range.
func (c *Case) check() error {
	if len(c.Groups) < 1 || len(c.Groups) > maxGroups {
		return fmt.Errorf("%w: %d groups, want 1 to %d", ErrCase, len(c.Groups), maxGroups)
	}
	for _, f := range []struct {
		name     string
		n, limit int
	}{
		{"L", c.L, maxTokens}, {"h", c.H, maxTokens}, {"N", c.N, maxHashes}, {"M", c.M, maxTokens},
		{"T", c.T, maxTokens}, {"start", c.Start, maxTokens}, {"tokens", c.Tokens, maxTokens},
	} {
		if f.n < 0 || f.n > f.limit {
			return fmt.Errorf("%w: %s is %d, want 0 to %d", ErrCase, f.name, f.n, f.limit)
		}
	}
	if c.R != nil && (*c.R < 0 || *c.R > maxTokens) {
		return fmt.Errorf("%w: R is %d, want null or 0 to %d", ErrCase, *c.R, maxTokens)
	}
	if c.NPrompt != nil && (*c.NPrompt < 0 || *c.NPrompt > maxTokens) {
		return fmt.Errorf("%w: nprompt is %d, want null or 0 to %d", ErrCase, *c.NPrompt, maxTokens)
	}
	chunks := 0
	for i, g := range c.Groups {
		if g.B < 1 || g.B > maxTokens || g.W < 0 || g.W > maxTokens {
			return fmt.Errorf("%w: group %d: b %d and w %d, want b 1 to %d and w 0 to %d", ErrCase, i, g.B, g.W, maxTokens, maxTokens)
		}
		chunks += max(c.M, c.T, c.Tokens) / g.B
	}
	if chunks > maxChunks {
		return fmt.Errorf("%w: masks of %d chunks, at most %d", ErrCase, chunks, maxChunks)
	}
	if c.Exists != nil {
		for _, e := range *c.Exists {
			if e[0] < 0 || e[0] >= len(c.Groups) || e[1] < 0 || e[1] >= c.N {
				return fmt.Errorf("%w: exists has group %d, hash %d; there are %d groups and %d hashes", ErrCase, e[0], e[1], len(c.Groups), c.N)
			}
		}
	}
	return nil
}

// ExistsFunc returns the case's store, nil for one that has everything.
func (c *Case) ExistsFunc() coordinator.ExistsFunc {
	if c.Exists == nil {
		return nil
	}
	words := (c.N + 63) / 64
	bits := make([]uint64, words*len(c.Groups))
	for _, e := range *c.Exists {
		bits[e[0]*words+e[1]/64] |= 1 << (e[1] % 64)
	}
	return func(group, hashIndex int) kv.Existence {
		if bits[group*words+hashIndex/64]>>(hashIndex%64)&1 == 1 {
			return kv.Present
		}
		return kv.Absent
	}
}

// StoreFunc is ExistsFunc that is never nil.
func (c *Case) StoreFunc() coordinator.ExistsFunc {
	if exists := c.ExistsFunc(); exists != nil {
		return exists
	}
	return func(int, int) kv.Existence { return kv.Present }
}

// Answer asks the coordinator.
func (c *Case) Answer() (Answer, error) {
	if err := c.check(); err != nil {
		return Answer{}, err
	}
	co, err := coordinator.New(c.Config())
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Op: c.Op}
	switch c.Op {
	case OpFind:
		var hit coordinator.Hit
		hit, a.Masks, err = co.Find(c.N, c.M, c.ApplyEagle, c.ExistsFunc())
		a.Hit = hit.Tokens
	case OpStoreMask:
		prefillEnd := coordinator.NoPrefill
		if c.NPrompt != nil {
			prefillEnd = *c.NPrompt
		}
		a.Masks, err = co.StoreMask(c.T, c.Start, prefillEnd)
	case OpLookupMask:
		a.Masks, err = co.LookupMask(c.T)
	case OpLookup:
		var lookup coordinator.Lookup
		lookup, err = co.Lookup(c.Tokens, c.N, c.StoreFunc())
		a.Hit, a.Tails = lookup.HitTokens, lookup.Tails
	default:
		return Answer{}, fmt.Errorf("%w: op %q, want find, store_mask, lookup_mask or lookup", ErrCase, c.Op)
	}
	return a, err
}
