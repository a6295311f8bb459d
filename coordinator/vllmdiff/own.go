package vllmdiff

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// CheckOwn holds what vLLM has no answer for against the case's own answer, which
// is compared with vLLM's elsewhere: explanations, answers that come in later,
// our own retention, accessors, refusals. It returns whether the case was
// answered in more than one round.
func CheckOwn(c *coordcases.Case, rng *rand.Rand) (resumed bool, err error) {
	co, err := coordinator.New(c.Config())
	if err != nil {
		return false, err
	}
	if err := errors.Join(checkAccessors(c, co), checkRefusals(c, co)); err != nil {
		return false, err
	}
	answer, err := c.Answer()
	if err != nil {
		if !errors.Is(err, coordinator.ErrUnservable) || co.Servable() == nil {
			return false, fmt.Errorf("the answer is the error %w, Servable says %w", err, co.Servable())
		}
		return false, nil
	}
	switch c.Op {
	case coordcases.OpFind:
		hit, err := co.HitLength(c.N, c.M, c.ApplyEagle, c.ExistsFunc())
		if err != nil || hit.Tokens != answer.Hit {
			return false, fmt.Errorf("HitLength says %d, Find %d: %w", hit.Tokens, answer.Hit, err)
		}
		return resumeFind(c, co, answer.Hit, rng)
	case coordcases.OpLookup:
		if err := checkExplanation(c, co, answer.Hit); err != nil {
			return false, err
		}
		return resumeLookup(c, co, answer.Hit, rng)
	case coordcases.OpStoreMask:
		return false, errors.Join(checkCounts(answer.Masks), checkStoreRetention(c, answer.Masks))
	}
	return false, nil
}

// checkAccessors compares what the coordinator says of itself with the case.
func checkAccessors(c *coordcases.Case, co *coordinator.Coordinator) error {
	align := c.L
	if c.Fine {
		align = c.H
	}
	if co.NumGroups() != len(c.Groups) || co.FineGrained() != (align < c.L) || co.Alignment() != align {
		return fmt.Errorf("%d groups, fine %v, alignment %d", co.NumGroups(), co.FineGrained(), co.Alignment())
	}
	length := c.Tokens + c.M + c.T
	if got := co.AlignLookupLength(length); got > length || got <= length-align || got%align != 0 || co.AlignLookupLength(-length) != 0 {
		return fmt.Errorf("%d tokens are aligned to %d, fewer than none to %d", length, got, co.AlignLookupLength(-length))
	}
	for g, spec := range c.Groups {
		if at := co.HashIndex(g, 3); (at+1)*c.H != 4*spec.B {
			return fmt.Errorf("group %d: chunk 3 has hash %d", g, at)
		}
	}
	cfg := c.Config()
	ns := kv.NamespaceSpec{
		Groups: cfg.Groups, HashBlockTokens: cfg.HashBlockTokens, SchedulerBlockTokens: cfg.SchedulerBlockTokens,
		HitAlignmentTokens: cfg.HitAlignmentTokens, UseEagle: cfg.UseEagle, RetentionTokens: cfg.RetentionTokens,
	}
	if got := coordinator.ConfigOf(&ns); !reflect.DeepEqual(got, cfg) {
		return fmt.Errorf("of a namespace: %+v, want %+v", got, cfg)
	}
	masks, err := co.LookupMask(align * (length / align))
	if err != nil {
		return err
	}
	return checkCounts(masks)
}

// checkCounts compares what a mask says of its whole with its chunks.
func checkCounts(masks []coordinator.Mask) error {
	for g, m := range masks {
		n := 0
		for i := m.First - 2; i < m.End()+2; i++ {
			if m.Has(i) {
				n++
			}
		}
		if n != m.Count() || m.All() && n != m.N {
			return fmt.Errorf("group %d: the mask has %d chunks, counts %d", g, n, m.Count())
		}
	}
	return nil
}

// checkRefusals breaks the case's configuration in every way and asks for what
// makes no sense.
func checkRefusals(c *coordcases.Case, co *coordinator.Coordinator) error {
	for i, spoil := range []func(*coordinator.Config){
		func(cfg *coordinator.Config) { cfg.Groups = nil },
		func(cfg *coordinator.Config) { cfg.HashBlockTokens = 0 },
		func(cfg *coordinator.Config) { cfg.SchedulerBlockTokens = -c.L },
		func(cfg *coordinator.Config) { cfg.HitAlignmentTokens = -1 },
		func(cfg *coordinator.Config) { cfg.RetentionTokens = -2 },
		func(cfg *coordinator.Config) { cfg.StoreRetention = -2 },
		func(cfg *coordinator.Config) { cfg.Groups[0].Kind = "circular_buffer" },
		func(cfg *coordinator.Config) { cfg.Groups[0].BlockTokens = 0 },
		func(cfg *coordinator.Config) { cfg.Groups[0].BlockTokens = 2 * c.L },
		func(cfg *coordinator.Config) { cfg.Groups[0].Kind, cfg.Groups[0].WindowTokens = kv.SlidingWindow, 0 },
	} {
		cfg := c.Config()
		spoil(&cfg)
		if _, err := coordinator.New(cfg); !errors.Is(err, coordinator.ErrConfig) {
			return fmt.Errorf("configuration spoilt in way %d: %w", i, err)
		}
	}
	_, unknown := co.Lookup(c.L, 1, nil)
	_, negative := co.Lookup(c.L, -1, c.StoreFunc())
	_, fewer := co.HitLength(-1, c.L, false, nil)
	_, _, fewerYet := co.Find(-1, c.L, false, nil)
	_, off := co.StoreMask(-c.L, 0, coordinator.NoPrefill)
	for i, err := range []error{unknown, negative, fewer, fewerYet, off} {
		if !errors.Is(err, coordinator.ErrArgument) {
			return fmt.Errorf("senseless question %d: %w", i, err)
		}
	}
	if servable := co.Servable(); servable != nil {
		if _, err := co.Explain(c.L, c.L/c.H, c.StoreFunc()); !errors.Is(err, coordinator.ErrUnservable) {
			return fmt.Errorf("explained what can't be served: %w", err)
		}
	}
	return nil
}

// checkExplanation compares the explanation with the hit it explains.
func checkExplanation(c *coordcases.Case, co *coordinator.Coordinator, hit int) error {
	e, err := co.Explain(c.Tokens, c.N, c.StoreFunc())
	if err != nil {
		return err
	}
	text := e.String()
	if e.HitTokens != hit || len(e.Groups) != len(c.Groups) || e.Length > c.Tokens || hit > e.Length ||
		strings.Count(text, "\n") != len(e.Groups) || !strings.HasPrefix(text, fmt.Sprintf("hit %d of %d tokens", hit, c.Tokens)) {
		return fmt.Errorf("hit %d is explained so: %s", hit, text)
	}
	unknown, err := co.Explain(c.Tokens, c.N, func(int, int) kv.Existence { return kv.Unknown })
	if err != nil || strings.Contains(unknown.String(), "pending") != unknown.Pending {
		return fmt.Errorf("where nothing is known: %s: %w", unknown, err)
	}
	specs := map[coordcases.Group]bool{}
	for _, g := range c.Groups {
		specs[coordcases.Group{Kind: g.Kind, B: g.B, W: g.W, Tag: g.Tag}] = true
	}
	for _, g := range e.Groups {
		if g.Reason == "" || g.Stored > g.Asked || (g.FirstMissing < 0) != (g.Stored == g.Asked) {
			return fmt.Errorf("group %d of %s", g.Group, text)
		}
		if len(specs) == 1 && (g.Alone != hit || g.Limits != (hit < e.Length)) {
			return fmt.Errorf("group %d alone decides, and is said not to: %s", g.Group, text)
		}
	}
	return nil
}

// checkStoreRetention: what our own setting stores is what an engine with that
// interval would, whatever the engine's own.
func checkStoreRetention(c *coordcases.Case, want []coordinator.Mask) error {
	cfg := c.Config()
	cfg.StoreRetention, cfg.RetentionTokens = cfg.RetentionTokens, 3*c.L
	if cfg.StoreRetention == coordinator.RetentionAsEngine || cfg.StoreRetention > 0 && cfg.StoreRetention%c.L != 0 {
		return nil // nothing that our setting can say
	}
	co, err := coordinator.New(cfg)
	if err != nil {
		return err
	}
	prefillEnd := coordinator.NoPrefill
	if c.NPrompt != nil {
		prefillEnd = *c.NPrompt
	}
	got, err := co.StoreMask(c.T, c.Start, prefillEnd)
	if err != nil || !reflect.DeepEqual(got, want) {
		return fmt.Errorf("own retention stores %+v, the engine's %+v: %w", got, want, err)
	}
	return nil
}
