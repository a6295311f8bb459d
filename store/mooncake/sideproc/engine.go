package sideproc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// Engine is a mooncake.Engine that keeps a side process running.
type Engine struct {
	cfg    Config
	notice *native.Notice[session]
	pid    atomic.Int64 // of the ready process, 0 for none
}

var _ mooncake.Engine = (*Engine)(nil)

// New returns an engine; Run starts its process.
func New(cfg Config) *Engine {
	cfg.Limits.setDefaults()
	return &Engine{cfg: cfg, notice: native.NewNotice[session]("the side process is not started")}
}

// Run keeps a process running until ctx is done, and waits for its end.
func (e *Engine) Run(ctx context.Context) error {
	// The process dies with the thread that started it, so that thread must live as
	// long as Run.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
		served, err := e.runProcess(ctx)
		if served >= e.cfg.Limits.LongestPause {
			pause = e.cfg.Limits.FirstPause
		}
		if ctx.Err() == nil {
			e.cfg.Log.Warn("the Mooncake side process is not running", "error", err, "retry_in", pause)
		}
		timer.Reset(pause)
		pause = min(2*pause, e.cfg.Limits.LongestPause)
	}
}

// runProcess runs one process to its end. It returns how long it served.
func (e *Engine) runProcess(ctx context.Context) (served time.Duration, err error) {
	p, err := start(&e.cfg)
	if err != nil {
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
		return 0, err
	}
	defer p.close()
	h, r, err := p.greet(ctx, &e.cfg)
	if err != nil {
		p.kill()
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
		return 0, err
	}
	versions := maps.Clone(r.Versions)
	if versions == nil {
		versions = map[string]string{}
	}
	versions["python"] = h.Python
	release, err := e.hold(p)
	if err != nil {
		p.kill()
		e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
		return 0, err
	}
	defer release()
	s := newSession(p.conn, e.cfg.Limits, p.kill)
	begun := time.Now()
	e.pid.Store(int64(p.cmd.Process.Pid))
	defer e.pid.Store(0)
	e.notice.Set(s, mooncake.Health{Ready: true, Note: textOf([]byte(r.Text)), Versions: versions, Segment: r.Segment})
	e.cfg.Log.Info("the Mooncake side process is ready", "pid", p.cmd.Process.Pid, "mooncake", versions["mooncake"], "segment", r.Segment, "probe", r.Text)
	err = e.serve(ctx, p, s)
	e.notice.Set(nil, mooncake.Health{Reason: err.Error()})
	return time.Since(begun), err
}

// hold tells the memory's owner of a process.
func (e *Engine) hold(p *process) (release func(), err error) {
	if e.cfg.Holds == nil {
		return func() {}, nil
	}
	if release, err = e.cfg.Holds(p.cmd.Process.Pid); err != nil {
		return nil, fmt.Errorf("side process: %w", err)
	}
	return release, nil
}

// serve carries a ready process's calls until its end, and waits for that.
func (e *Engine) serve(ctx context.Context, p *process, s *session) error {
	var work sync.WaitGroup
	work.Go(s.write)
	work.Go(func() {
		if err := s.read(); err != nil {
			s.condemn(err)
		}
	})
	pinging, stopPings := context.WithCancel(ctx)
	work.Go(func() { s.ping(pinging) })
	select {
	case <-ctx.Done():
		// Calls fail from now on; the process is asked to leave.
		e.notice.Set(nil, mooncake.Health{Reason: "it is being ended"})
		_ = p.conn.CloseWrite() // a process that does not hear it is killed
		timer := time.AfterFunc(e.cfg.Limits.Close, func() { s.condemn(errors.New("it did not end by itself")) })
		<-p.exited
		timer.Stop()
	case <-p.exited:
	}
	stopPings()
	err := s.verdict()
	if err == nil {
		err = p.errExited()
	}
	s.end(err)
	_ = p.conn.Close()
	work.Wait()
	return fmt.Errorf("side process: %w", err)
}

// ping asks now and then whether the process lives. Its limit kills one that does
// not answer, and one that answers something else is not ours to keep.
func (s *session) ping(ctx context.Context) {
	ticker := time.NewTicker(s.limits.Ping)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.over:
			return
		case <-ticker.C:
		}
		_, err := s.call(ctx, lanePing, kindPing, 1, func(dst []byte) []byte { return appendKeys(dst, nil) })
		if errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return // with the session, or the context
		}
		if err != nil {
			s.condemn(fmt.Errorf("ping: %w", err))
			return
		}
	}
}

// Health implements mooncake.Engine.
func (e *Engine) Health() mooncake.Health {
	health, _ := e.notice.Health()
	return health
}

// Changed returns a channel that is closed when Health changes.
func (e *Engine) Changed() <-chan struct{} { return e.notice.Changed() }

// PID returns the number of the ready process, 0 when there is none.
func (e *Engine) PID() int { return int(e.pid.Load()) }

// call makes a call of the ready process.
func (e *Engine) call(ctx context.Context, op string, lane int, kind byte, n int, body func(dst []byte) []byte) ([]mooncake.Answer, error) {
	s, err := e.notice.Session(op)
	if err != nil {
		return nil, err
	}
	answers, err := s.call(ctx, lane, kind, n, body)
	if err != nil {
		return nil, fmt.Errorf("mooncake: %s: %w", op, err)
	}
	return answers, nil
}

// Exist implements mooncake.Engine.
func (e *Engine) Exist(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	return e.call(ctx, "exist", laneExist, kindExist, len(keys), func(dst []byte) []byte { return appendKeys(dst, keys) })
}

// Put implements mooncake.Engine.
func (e *Engine) Put(ctx context.Context, how mooncake.Replication, objects []mooncake.Object) ([]mooncake.Answer, error) {
	if err := e.check(objects); err != nil {
		return nil, err
	}
	if err := native.CheckHow(&how); err != nil {
		return nil, err
	}
	return e.call(ctx, "put", lanePut, kindPut, len(objects), func(dst []byte) []byte { return appendHow(appendObjects(dst, objects), &how) })
}

// Get implements mooncake.Engine.
func (e *Engine) Get(ctx context.Context, objects []mooncake.Object) ([]mooncake.Answer, error) {
	if err := e.check(objects); err != nil {
		return nil, err
	}
	return e.call(ctx, "get", laneGet, kindGet, len(objects), func(dst []byte) []byte { return appendObjects(dst, objects) })
}

// Remove implements mooncake.Engine.
func (e *Engine) Remove(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	return e.call(ctx, "remove", laneRemove, kindRemove, len(keys), func(dst []byte) []byte { return appendKeys(dst, keys) })
}

// RemovePrefix implements mooncake.Engine.
func (e *Engine) RemovePrefix(ctx context.Context, prefix string) (int, error) {
	if err := mooncake.CheckPrefix(prefix); err != nil {
		return 0, err
	}
	answers, err := e.call(ctx, "remove", laneRemove, kindRemoveRegex, 1, func(dst []byte) []byte { return appendKeys(dst, []string{native.Expression(prefix)}) })
	if err != nil {
		return 0, err
	}
	if code := answers[0].Code(); code != 0 {
		return 0, &mooncake.Error{Op: "remove", Code: code, Text: prefix}
	}
	return int(answers[0]), nil
}

func (e *Engine) check(objects []mooncake.Object) error {
	return mooncake.CheckObjects(uint64(len(e.cfg.Memory.Bytes())), objects)
}
