package coordinator

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// maxGroups bounds the groups of a configuration: working state for so many
// lives on the stack of a lookup.
const maxGroups = 64

// RetentionDense is the RetentionTokens of an engine whose
// prefix_cache_retention_interval is None, and the StoreRetention that stores a
// sliding window before every scheduler block.
const RetentionDense = -1

// RetentionAsEngine is the StoreRetention that follows RetentionTokens.
const RetentionAsEngine = 0

var (
	// ErrConfig reports a configuration that can't be served.
	ErrConfig = errors.New("coordinator: configuration")
	// ErrUnservable reports a question that the engine itself can't ask: its own
	// cache managers assert on it.
	ErrUnservable = errors.New("coordinator: not servable")
	// ErrArgument reports a length that is negative or not aligned.
	ErrArgument = errors.New("coordinator: argument")
)

// Config is what the rules read of a namespace.
type Config struct {
	// Groups are the store groups in order, context-parallel sharding already in
	// their block sizes.
	Groups []kv.GroupSpec
	// HashBlockTokens is the tokens one block hash covers.
	HashBlockTokens int
	// SchedulerBlockTokens is a multiple of every group's block: the LCM of all
	// the engine's groups, which may be more than the store's.
	SchedulerBlockTokens int
	// HitAlignmentTokens below SchedulerBlockTokens turns fine-grained hits on;
	// 0 means unset. It is the engine's decision and must not be derived from
	// the groups: a group that the store never sees can veto it.
	HitAlignmentTokens int
	// UseEagle flags every group when none is flagged by itself.
	UseEagle bool
	// RetentionTokens is the engine's prefix_cache_retention_interval:
	// RetentionDense for None, 0 for the replay boundaries only, or an interval.
	RetentionTokens int
	// StoreRetention overrides RetentionTokens for what is stored:
	// RetentionAsEngine, RetentionDense, or an interval, a multiple of
	// SchedulerBlockTokens. With the engine's default a sliding-window group
	// stores one window a request, and a request that shares a shorter prefix
	// finds none.
	StoreRetention int
}

// ConfigOf takes the configuration out of a namespace.
func ConfigOf(ns *kv.NamespaceSpec) Config {
	return Config{
		Groups:               ns.Groups,
		HashBlockTokens:      ns.HashBlockTokens,
		SchedulerBlockTokens: ns.SchedulerBlockTokens,
		HitAlignmentTokens:   ns.HitAlignmentTokens,
		UseEagle:             ns.UseEagle,
		RetentionTokens:      ns.RetentionTokens,
	}
}

// rule is how a kind of group finds its own hit.
type rule uint8

const (
	ruleFull rule = iota
	ruleWindow
	ruleChunked
	ruleMamba
)

// ruleOf returns the rule of a kind; ok is false for a kind it does not know.
func ruleOf(kind kv.SpecKind) (r rule, ok bool) {
	switch kind {
	case kv.FullAttention, kv.MLAAttention, kv.HiddenState, kv.RSWA, kv.SinkFullAttention:
		return ruleFull, true
	case kv.SlidingWindow, kv.SlidingWindowMLA:
		return ruleWindow, true
	case kv.ChunkedLocal:
		return ruleChunked, true
	case kv.MambaAlign:
		return ruleMamba, true
	}
	return 0, false
}

// knownKinds lists the kinds for an error message.
func knownKinds() string {
	kinds := []kv.SpecKind{kv.FullAttention, kv.MLAAttention, kv.HiddenState, kv.RSWA, kv.SinkFullAttention,
		kv.SlidingWindow, kv.SlidingWindowMLA, kv.ChunkedLocal, kv.MambaAlign}
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

// validate reports the first thing that can't be served.
func (c *Config) validate() error {
	h, l := c.HashBlockTokens, c.SchedulerBlockTokens
	switch {
	case len(c.Groups) < 1 || len(c.Groups) > maxGroups:
		return fmt.Errorf("%w: %d KV-cache groups, want 1 to %d", ErrConfig, len(c.Groups), maxGroups)
	case h < 1:
		return fmt.Errorf("%w: hash_block_tokens is %d, want at least 1", ErrConfig, h)
	case l < 1 || l%h != 0:
		return fmt.Errorf("%w: scheduler_block_tokens %d is no multiple of hash_block_tokens %d", ErrConfig, l, h)
	case c.HitAlignmentTokens < 0:
		return fmt.Errorf("%w: hit_alignment_tokens is %d, want 0 or more", ErrConfig, c.HitAlignmentTokens)
	case c.RetentionTokens < RetentionDense:
		return fmt.Errorf("%w: retention_tokens is %d, want -1 (dense), 0 or an interval", ErrConfig, c.RetentionTokens)
	case c.StoreRetention < RetentionDense || c.StoreRetention > 0 && c.StoreRetention%l != 0:
		return fmt.Errorf("%w: store_retention is %d, want 0 (as the engine), -1 (dense) or a multiple of scheduler_block_tokens %d",
			ErrConfig, c.StoreRetention, l)
	}
	for i, g := range c.Groups {
		r, ok := ruleOf(g.Kind)
		switch {
		case !ok:
			return fmt.Errorf("%w: group %d: KV-cache-group kind %q is not known; known kinds: %s", ErrConfig, i, g.Kind, knownKinds())
		case g.BlockTokens < 1 || g.BlockTokens%h != 0:
			return fmt.Errorf("%w: group %d: block_tokens %d is no multiple of hash_block_tokens %d", ErrConfig, i, g.BlockTokens, h)
		case l%g.BlockTokens != 0:
			return fmt.Errorf("%w: group %d: block_tokens %d does not divide scheduler_block_tokens %d", ErrConfig, i, g.BlockTokens, l)
		case (r == ruleWindow || r == ruleChunked) && g.WindowTokens < 1:
			return fmt.Errorf("%w: group %d: window_tokens is %d, a %s group wants at least 1", ErrConfig, i, g.WindowTokens, g.Kind)
		}
	}
	return nil
}
