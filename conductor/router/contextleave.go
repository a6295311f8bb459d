package router

import (
	"context"
	"errors"
	"slices"
	"time"
)

// leaving is a context that is gone, and when a store is to let go of it once more.
type leaving struct {
	of *promptContext
	at time.Time
}

// warmed notes that an engine is done with a context.
func (c *contexts) warmed(p *promptContext, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.warmed = now
}

// leave notes that an engine's store is to let go of a context once more, keepsFor from now, if
// engines were done with it only now. No more are remembered than there may be contexts: the
// one whose time came next is returned where there would be, and it is let go of at once.
func (c *contexts) leave(p *promptContext, engine string, now time.Time) (earlier *promptContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(p.warmed) >= keepsFor {
		return nil
	}
	all := c.leaving[engine]
	if len(all) == c.config.Contexts {
		earlier = all[0].of
		all = slices.Delete(all, 0, 1)
	}
	c.leaving[engine] = append(all, leaving{p, now.Add(keepsFor)})
	return earlier
}

// left returns the contexts that an engine's store is to let go of once more by now.
func (c *contexts) left(engine string, now time.Time) (due []*promptContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.leaving[engine]
	for len(all) > 0 && !all[0].at.After(now) {
		due, all = append(due, all[0].of), all[1:]
	}
	c.leaving[engine] = slices.Clone(all) // what is gone holds no memory
	return due
}

// leave lets go of a context that was deleted, and once more later where its engine may still
// be storing it: that comes in pinned for as long as the context was to be kept.
func (r *Router) leave(ctx context.Context, p *promptContext, engine string) {
	if earlier := r.contexts.leave(p, engine, time.Now()); earlier != nil {
		r.letGo(ctx, earlier, engine)
	}
	r.letGo(ctx, p, engine)
}

// letGoAgain lets go of the contexts whose second time has come.
func (r *Router) letGoAgain(ctx context.Context, engine int) {
	name := r.fleet.Engine(engine).Name
	for _, p := range r.contexts.left(name, time.Now()) {
		r.letGo(ctx, p, name)
	}
}

// letGo has an engine's store let go of a context that is gone, but for what others have in
// common with it. What is new to them meanwhile is theirs: the store asks what that is when
// nothing is pinned in it.
func (r *Router) letGo(ctx context.Context, p *promptContext, engine string) {
	q := r.contexts.asked(p)
	if r.stores == nil || q == nil { // it was never pinned
		return
	}
	ctx, cancel := context.WithTimeout(ctx, letsGo)
	defer cancel()
	err := r.stores.Unpin(ctx, engine, r.prefixOf(q, q.tokens), func() (tokens int) {
		for _, s := range r.contexts.sharing(q, q.tokens, time.Now()) {
			tokens = max(tokens, s.tokens)
		}
		return tokens
	})
	if err == nil { // what is left may be pinned for longer than it is kept
		err = r.pinShared(ctx, engine, q, q.tokens, time.Time{})
	}
	if err != nil && !errors.Is(err, ErrNoStore) {
		r.log.Warn("a store was not told to let go of a context", "context", p.name, "engine", engine, "error", err)
	}
}
