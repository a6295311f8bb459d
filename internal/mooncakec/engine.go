package mooncakec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// Engine is a mooncake.Engine over the C library.
type Engine struct {
	cfg    Config
	load   func(path string) (library, error)
	notice *native.Notice[session]
}

var _ mooncake.Engine = (*Engine)(nil)

// New returns an engine; Run loads the library.
func New(cfg Config) *Engine { return newEngine(cfg, load) }

func newEngine(cfg Config, load func(path string) (library, error)) *Engine {
	cfg.Limits.setDefaults()
	return &Engine{cfg: cfg, load: load, notice: native.NewNotice[session]("the Mooncake library is not loaded")}
}

// Run keeps a client set up until ctx is done, then ends it. Settings that can never
// work end it at once, with ErrLibrary. It waits for calls under way, but not for
// ever: with ErrLeft one of them has not returned, nor has its thread ended, and the
// memory has to stay, out of use, until the process ends.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.cfg.check(); err != nil {
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
		return fmt.Errorf("mooncake: %w", err)
	}
	pause := e.cfg.Limits.FirstPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.notice.Set(nil, mooncake.Health{Reason: "it was ended"})
			return ctx.Err()
		case <-timer.C:
		}
		served, err := e.runClient(ctx)
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
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
	s := newSession(c, e.cfg.Limits, e.cfg.Hold, e.notice.Tell)
	begun := time.Now()
	e.notice.Set(s, c.health)
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
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
		e.cfg.Log.Warn("the Mooncake library does not get ready", "error", err)
	}
}

// Changed returns a channel that is closed when Health changes.
func (e *Engine) Changed() <-chan struct{} { return e.notice.Changed() }

// Health implements mooncake.Engine.
func (e *Engine) Health() mooncake.Health {
	health, s := e.notice.Health()
	if s != nil {
		if err := s.refusal(); err != nil {
			health.Ready, health.Reason = false, err.Error()
		}
	}
	return health
}
