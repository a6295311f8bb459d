package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// keepEvery is how often contexts are looked after, and warmEvery how often an engine is
// asked for one that it keeps in its cache alone.
const (
	keepEvery = 10 * time.Second
	warmEvery = 2 * time.Minute
	// keepsFor is how long an engine may take for a context, and again until what it computed is
	// in its store, and letsGo how long a store.
	keepsFor = time.Minute
	letsGo   = 10 * time.Second
)

// wakeKeepers has contexts looked after now.
func (r *Router) wakeKeepers() {
	for _, wake := range r.keepNow {
		select {
		case wake <- struct{}{}:
		default: // it is coming
		}
	}
}

// keeper sees that an engine keeps contexts, one after the other, until ctx ends. Each engine
// has one: who is slow holds up no other.
func (r *Router) keeper(ctx context.Context, engine int) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.keepNow[engine]:
		case <-ticker.C:
		}
		r.letGoAgain(ctx, engine)
		serves := map[string]*fleet.Candidate{} // by model, nil: not this engine
		for _, p := range r.contexts.live("", time.Now()) {
			c, known := serves[p.request.model]
			if !known {
				c = r.prefills(p.request.model, engine)
				serves[p.request.model] = c
			}
			if c != nil {
				r.keep(ctx, p, c)
			}
		}
	}
}

// prefills returns an engine as one that a model's prompts are sent to, nil if none are.
func (r *Router) prefills(model string, engine int) *fleet.Candidate {
	all := r.fleet.Candidates(model, nil)
	i := slices.IndexFunc(all, func(c fleet.Candidate) bool { return c.Engine == engine && c.Rank == 0 && c.Role != fleet.Decode })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// keep has an engine keep a context, if that is due.
func (r *Router) keep(ctx context.Context, p *promptContext, c *fleet.Candidate) {
	began := time.Now()
	until, due := r.contexts.due(p, c.Name, c.Since, began)
	if !due {
		return
	}
	one, cancel := context.WithTimeout(ctx, keepsFor)
	tokens, err := r.keepAt(one, p, until, c)
	cancel()
	if ctx.Err() != nil {
		return
	}
	kept := keeping{Tokens: tokens, at: began, until: until}
	if err != nil {
		kept.Error = err.Error()
		r.log.Warn("a context is not kept", "context", p.name, "engine", c.Name, "error", err)
	}
	if !r.contexts.kept(p, c.Name, kept) { // it went while it was being kept
		r.leave(ctx, p, c.Name)
	}
}

// keepAt has an engine compute a context's prefix, or load it, and its store pin it.
func (r *Router) keepAt(ctx context.Context, p *promptContext, until time.Time, c *fleet.Candidate) (int, error) {
	q := *p.request
	exact := r.tokens(ctx, &q, p.body, maxTokenize)
	if q.tokens == nil || !exact {
		return 0, fmt.Errorf("%w: its token ids are not known: %s", errContext, q.why)
	}
	r.contexts.known(p, &q)
	// What is new in the store is pinned as it comes, what is there already below.
	wish := fmt.Sprintf(`{"mooncake_sidecar":{"ttl_s":%d,"pin":"soft"}}`, int(math.Ceil(pinFor(until).Seconds())))
	work := r.fleet.Costs().Work(q.count, 0)
	ctx, flight := r.fleet.Begin(ctx, c.Target, fleet.Load{Tokens: q.count, Prefill: true, Work: work, First: work, Blind: true})
	defer flight.End()
	err := r.warm(ctx, c.Target, &q, q.tokens, []field{{transferParams, []byte(wish)}})
	r.contexts.warmed(p, time.Now()) // whatever it said, it may store
	if err != nil {
		return 0, err
	}
	if r.stores == nil || r.contexts.gone(p) {
		return 0, nil
	}
	tokens, err := r.pin(ctx, c.Name, &q, q.tokens, until)
	if errors.Is(err, ErrNoStore) {
		return 0, nil
	}
	return tokens, err
}

// pinFor is for how long something is pinned until then.
func pinFor(until time.Time) time.Duration { return max(time.Until(until), time.Second) }

// pin has an engine's store pin a prefix until then. What contexts have in common with it
// that are kept for longer is pinned for as long as before: a pin takes an earlier one's place.
func (r *Router) pin(ctx context.Context, engine string, q *request, tokens []byte, until time.Time) (int, error) {
	pinned, err := r.stores.Pin(ctx, engine, r.prefixOf(q, tokens), func() time.Duration { return pinFor(until) })
	if err != nil {
		return pinned, err
	}
	return pinned, r.pinShared(ctx, engine, q, tokens, until)
}

// pinShared has a store pin what contexts have in common with a prefix, each part until the
// last of its contexts ends, where that is later than until.
func (r *Router) pinShared(ctx context.Context, engine string, q *request, tokens []byte, until time.Time) error {
	for {
		shared, deleted := r.contexts.sharing(q, tokens, time.Now()), false
		for _, s := range steps(shared, until) {
			_, err := r.stores.Pin(ctx, engine, r.prefixOf(q, tokens[:s.tokens*tokenBytes]), func() time.Duration {
				// The store may have let go of one that was deleted since, and nobody would again. One
				// whose time is over is let go of by this pin alone.
				if deleted = deleted || r.contexts.gone(s.of) && time.Now().Before(s.until); deleted {
					return 0
				}
				return pinFor(s.until)
			})
			if err != nil {
				r.contexts.forget(shared, engine) // so that each is pinned again by itself
				return err
			}
			if deleted {
				break
			}
		}
		if !deleted {
			return nil
		}
	}
}

// steps are the parts of a prefix that are to be pinned one after the other so that each is
// pinned for the longest of those that share it, where that is longer than until. The longest
// part comes first: what is pinned later takes its place.
func steps(shared []share, until time.Time) (all []share) {
	slices.SortFunc(shared, func(a, b share) int {
		if a.tokens != b.tokens {
			return b.tokens - a.tokens
		}
		return b.until.Compare(a.until)
	})
	for _, s := range shared {
		if s.until.After(until) {
			all, until = append(all, s), s.until
		}
	}
	return all
}
