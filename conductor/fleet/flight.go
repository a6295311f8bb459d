package fleet

import (
	"context"
	"errors"
	"time"
)

// ErrEngineDown: the engine that was answering has been out for too long.
var ErrEngineDown = errors.New("the engine does not answer any more")

// Target is a rank of an engine: indices in the fleet's order.
type Target struct{ Engine, Rank int }

// Load is what a request is to an engine.
type Load struct {
	// Tokens of the prompt, of which CachedTokens are expected not to be computed.
	Tokens, CachedTokens int
	// Prefill: it computes the prompt, which takes Work. Decode: it generates.
	Prefill, Decode bool
	Work            time.Duration
	// Blind: nobody will say when the first token has come, so that it is taken to come when
	// it is expected.
	Blind bool
	// First is when the first token is expected, from now on.
	First time.Duration
}

// Flight is a request at an engine. First, Tokens and End may be called from any
// goroutine, one at a time. After End none does anything.
type Flight struct {
	fleet  *Fleet
	engine *engine
	rank   *rank
	load   Load
	cancel context.CancelCauseFunc

	// Guarded by engine.mu.
	begun, expected, first time.Time
	counted                int64 // generated tokens that are in the rank's context
	over                   bool

	// window is the part of a stream whose pace is being observed; the caller's alone.
	window struct {
		since  time.Time
		tokens int
	}
	// pending tokens are not counted yet; the caller's alone.
	pending int64
}

// Begin counts a request in. The context that it returns ends with the engine; the
// caller calls End.
func (f *Fleet) Begin(ctx context.Context, to Target, load Load) (context.Context, *Flight) {
	e := f.engines[to.Engine]
	ctx, cancel := context.WithCancelCause(ctx)
	now := time.Now()
	flight := &Flight{fleet: f, engine: e, load: load, cancel: cancel, begun: now, expected: now.Add(load.First)}
	e.mu.Lock()
	defer e.mu.Unlock()
	flight.rank = &e.ranks[to.Rank]
	flight.rank.begin(flight, now)
	e.counts.Begun++
	return ctx, flight
}

// First says that the first token has come. Further calls do nothing.
func (f *Flight) First() {
	now := time.Now()
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.over || !f.first.IsZero() {
		return
	}
	f.first = now
	f.window.since = now
	if !f.load.Prefill {
		return
	}
	if f.load.Blind {
		f.rank.busy.spoilt = true
	}
	features, took := f.rank.first(f, now)
	f.rank.sawPrefill = f.rank.sawPrefill || !f.load.Blind
	if took > 0 {
		f.rank.prefills.observe(f.fleet.costs.observePrefill(&features, took), took)
	}
}

// windowTokens is how many tokens one observation of a stream's pace is of.
const windowTokens = 16

// Tokens says that so many more have come, after First.
func (f *Flight) Tokens(n int) {
	f.window.tokens += n
	f.pending += int64(n)
	if f.window.tokens < windowTokens {
		return
	}
	now := time.Now()
	took := now.Sub(f.window.since)
	step := took / time.Duration(f.window.tokens)
	f.window.since, f.window.tokens = now, 0
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.over {
		return
	}
	f.countLocked()
	f.rank.sawStep = true
	d := f.rank.decoder()
	x := stepFeatures(float64(d.Sequences), float64(d.ContextTokens))
	f.rank.steps.observe(f.fleet.costs.observeStep(&x, step), took)
}

// countLocked adds what was generated to the rank's context.
func (f *Flight) countLocked() {
	if f.load.Decode {
		f.rank.context += f.pending
		f.counted += f.pending
	}
	f.pending = 0
}

// End counts the request out.
func (f *Flight) End() {
	f.cancel(nil)
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.over {
		return
	}
	f.countLocked()
	f.over = true
	f.rank.end(f, time.Now())
}

// TTFT is how long the first token took, 0 if none has come.
func (f *Flight) TTFT() time.Duration {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.first.IsZero() {
		return 0
	}
	return f.first.Sub(f.begun)
}
