package mooncakec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Engine is a mooncake.Engine over the C library.
type Engine struct {
	cfg  Config
	load func(path string) (library, error)

	mu      sync.Mutex
	session *session // nil when no client is set up
	health  mooncake.Health
	changed chan struct{} // closed and replaced when health changes
}

var _ mooncake.Engine = (*Engine)(nil)

// New returns an engine; Run loads the library.
func New(cfg Config) *Engine { return newEngine(cfg, load) }

func newEngine(cfg Config, load func(path string) (library, error)) *Engine {
	cfg.Limits.setDefaults()
	return &Engine{cfg: cfg, load: load, changed: make(chan struct{}), health: mooncake.Health{Reason: "the Mooncake library is not loaded"}}
}

// Run keeps a client set up until ctx is done, then ends it. Settings that can never
// work end it at once, with ErrLibrary. It waits for calls under way, but not for
// ever: with ErrLeft one of them has not returned, nor has its thread ended, and the
// memory has to stay, out of use, until the process ends.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.cfg.check(); err != nil {
		e.set(nil, mooncake.Health{Reason: err.Error()})
		return fmt.Errorf("mooncake: %w", err)
	}
	pause := e.cfg.Limits.FirstPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.set(nil, mooncake.Health{Reason: "it was ended"})
			return ctx.Err()
		case <-timer.C:
		}
		served, err := e.runClient(ctx)
		e.set(nil, mooncake.Health{Reason: err.Error()})
		switch {
		case errors.Is(err, ErrLeft):
			return fmt.Errorf("mooncake: %w", err)
		case served >= e.cfg.Limits.LongestPause:
			pause = e.cfg.Limits.FirstPause
		}
		if ctx.Err() == nil {
			e.cfg.Log.Warn("there is no Mooncake client", "error", err, "retry_in", pause)
		}
		timer.Reset(pause)
		pause = min(2*pause, e.cfg.Limits.LongestPause)
	}
}

// runClient runs one client to its end. It returns how long it served.
func (e *Engine) runClient(ctx context.Context) (served time.Duration, err error) {
	c, err := e.open(ctx)
	if err != nil {
		return 0, err
	}
	s := newSession(c, e.cfg.Limits, e.cfg.Hold, e.tell)
	begun := time.Now()
	e.set(s, c.health)
	e.cfg.Log.Info("the Mooncake library is ready", "library", e.cfg.Library, "segment", c.health.Segment, "pins", c.health.Versions["pins"])
	err = s.run(ctx)
	return time.Since(begun), err
}

// open sets up a client, however long that takes: nothing can end it.
func (e *Engine) open(ctx context.Context) (*connection, error) {
	type result struct {
		c   *connection
		err error
	}
	stages := make(chan string, stageCount)
	opened := make(chan result, 1)
	go func() {
		c, err := open(&e.cfg, e.load, func(stage string) { stages <- stage })
		opened <- result{c, err}
	}()
	limit := time.NewTimer(e.cfg.Limits.Start)
	defer limit.Stop()
	ended, late, at := ctx.Done(), false, "its beginning"
	for {
		select {
		case r := <-opened:
			return r.c, r.err
		case <-ended:
			ended = nil
			limit.Reset(e.cfg.Limits.Close)
			continue
		case at = <-stages:
			if !late || ended == nil {
				continue
			}
		case <-limit.C:
			late = true
		}
		err := fmt.Errorf("%w from %s", ErrLeft, at)
		if ended == nil {
			return nil, err
		}
		e.set(nil, mooncake.Health{Reason: err.Error()})
		e.cfg.Log.Warn("the Mooncake library does not get ready", "error", err)
	}
}

// set notes what became of the client.
func (e *Engine) set(s *session, health mooncake.Health) {
	e.mu.Lock()
	defer e.mu.Unlock()
	health.Starts = e.health.Starts
	if s != nil {
		health.Starts++
	}
	e.session, e.health = s, health
	e.tellLocked()
}

// tell tells who waits that health has changed.
func (e *Engine) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tellLocked()
}

func (e *Engine) tellLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// Changed returns a channel that is closed when Health changes.
func (e *Engine) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// Health implements mooncake.Engine.
func (e *Engine) Health() mooncake.Health {
	e.mu.Lock()
	s, health := e.session, e.health
	e.mu.Unlock()
	health.Versions = maps.Clone(health.Versions)
	if s != nil {
		if err := s.refusal(); err != nil {
			health.Ready, health.Reason = false, err.Error()
		}
	}
	return health
}

// ready returns the session that takes calls.
func (e *Engine) ready(op string) (*session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == nil {
		return nil, fmt.Errorf("mooncake: %s: %w: %s", op, store.ErrUnavailable, e.health.Reason)
	}
	return e.session, nil
}
