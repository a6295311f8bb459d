package mooncakec

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// played is a library and its client, played in Go: calls take as long as a test
// says, in the test's time.
type played struct {
	client
	exists, gets func() ([]mooncake.Answer, error)
	setups       func() mooncake.Code
	closedNow    atomic.Bool
	destroys     atomic.Int64
	underway     atomic.Int64
	t            *testing.T
}

func (p *played) create() (client, error) { return p, nil }
func (p *played) setup(*settings) mooncake.Code {
	if p.setups == nil {
		return 0
	}
	return p.setups()
}
func (p *played) register([]byte) mooncake.Code { return 0 }
func (p *played) hostname() string              { return "" }
func (p *played) learnPins() string             { return "flags" }
func (p *played) closed() bool                  { return p.closedNow.Load() }
func (p *played) exist([]string) ([]mooncake.Answer, error) {
	return p.make(p.exists)
}
func (p *played) get([]byte, []mooncake.Object) ([]mooncake.Answer, error) { return p.make(p.gets) }

func (p *played) make(call func() ([]mooncake.Answer, error)) ([]mooncake.Answer, error) {
	p.underway.Add(1)
	defer p.underway.Add(-1)
	return call()
}

func (p *played) destroy() {
	if n := p.underway.Load(); n != 0 {
		p.t.Errorf("destroyed with %d calls under way", n)
	}
	p.destroys.Add(1)
}

// run runs an engine over a played library, for the length of a bubble.
func (p *played) run(t *testing.T, change func(*Config)) (e *Engine, end func() error) {
	t.Helper()
	p.t = t
	cfg := Config{Library: "/library.so", Memory: make([]byte, 4096), Log: slog.New(slog.DiscardHandler), NoProbe: true, Cluster: cluster.Config{LocalHostname: "127.0.0.1"}}
	if change != nil {
		change(&cfg)
	}
	e = newEngine(cfg, func(string) (library, error) { return p, nil })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	synctest.Wait()
	return e, func() error {
		cancel()
		return <-ended
	}
}

func takes(d time.Duration, answers ...mooncake.Answer) func() ([]mooncake.Answer, error) {
	return func() ([]mooncake.Answer, error) {
		time.Sleep(d)
		return answers, nil
	}
}

func one(key string) []mooncake.Object {
	return []mooncake.Object{{Key: key, Range: mooncake.Range{Bytes: 64}}}
}

// TestQuestionLimit: a question is answered at its limit, its context's end or its
// answer, whichever is first; between its limit and its return there are no calls.
func TestQuestionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &played{exists: takes(90*time.Second, 1)}
		e, end := p.run(t, nil)
		begun := time.Now()
		patient, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := e.Exist(patient, []string{"a"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		if !e.Health().Ready {
			t.Errorf("down before the limit: %+v", e.Health())
		}
		begun = time.Now()
		if _, err := e.Exist(t.Context(), []string{"b"}); !errors.Is(err, store.ErrUnavailable) || time.Since(begun) != 60*time.Second {
			t.Errorf("%v after %s, want ErrUnavailable after a minute", err, time.Since(begun))
		}
		synctest.Wait()
		begun = time.Now()
		if _, err := e.Get(t.Context(), one("c")); !errors.Is(err, store.ErrUnavailable) || time.Since(begun) != 0 {
			t.Errorf("%v after %s, want ErrUnavailable at once", err, time.Since(begun))
		}
		time.Sleep(30 * time.Second) // the second has returned, too
		synctest.Wait()
		if health := e.Health(); !health.Ready || health.Starts != 1 {
			t.Errorf("%+v", health)
		}
		p.exists = takes(time.Second, 1)
		if answers, err := e.Exist(t.Context(), []string{"d"}); err != nil || answers[0] != 1 {
			t.Errorf("%v, %v", answers, err)
		}
		if err := end(); !errors.Is(err, context.Canceled) || p.destroys.Load() != 1 {
			t.Errorf("%v, %d destroyed", err, p.destroys.Load())
		}
	})
}

// TestTurns: calls of a kind wait for each other and for no others; who waits is told
// when the engine goes down, and when its own time is over.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &played{gets: takes(10*time.Minute, 64), exists: takes(0, 0)}
		e, end := p.run(t, nil)
		var users sync.WaitGroup
		results := make(chan error, 5)
		for range 4 {
			users.Go(func() {
				_, err := e.Get(t.Context(), one("a"))
				results <- err
			})
		}
		synctest.Wait()
		if _, err := e.Exist(t.Context(), []string{"a"}); err != nil {
			t.Errorf("a question beside gets: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Get(short, one("b")); !errors.Is(err, mooncake.ErrNoTurn) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want ErrNoTurn", err)
		}
		begun := time.Now()
		if _, err := e.Get(t.Context(), one("c")); !errors.Is(err, store.ErrUnavailable) || time.Since(begun) != 119*time.Second {
			t.Errorf("%v after %s, want ErrUnavailable at the others' limit", err, time.Since(begun))
		}
		users.Wait()
		for range 4 {
			if err := <-results; err != nil {
				t.Errorf("a get that took ten minutes: %v", err)
			}
		}
		synctest.Wait()
		if health := e.Health(); !health.Ready || health.Starts != 1 {
			t.Errorf("%+v", health)
		}
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestLateFailure: a transfer that failed within a second has ended; later, and it
// may go on: its client is destroyed, without other calls in it, and only then is it
// answered.
func TestLateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &played{exists: takes(20*time.Second, 1)}
		e, end := p.run(t, nil)
		p.gets = takes(time.Second-1, -800)
		if answers, err := e.Get(t.Context(), one("a")); err != nil || answers[0] != -800 {
			t.Errorf("%v, %v", answers, err)
		}
		for _, code := range []mooncake.Answer{-704, -707, -900} { // not of a transfer that goes on
			p.gets = takes(10*time.Second, code)
			if answers, err := e.Get(t.Context(), one("a")); err != nil || answers[0] != code {
				t.Errorf("%v, %v", answers, err)
			}
		}
		p.gets = takes(time.Second, -800)
		var asking sync.WaitGroup
		asking.Go(func() {
			if answers, err := e.Exist(t.Context(), []string{"a"}); err != nil || answers[0] != 1 {
				t.Errorf("the question beside it: %v, %v", answers, err)
			}
		})
		synctest.Wait()
		begun := time.Now()
		if _, err := e.Get(t.Context(), one("a")); !errors.Is(err, store.ErrUnavailable) || time.Since(begun) != 20*time.Second || p.destroys.Load() != 1 {
			t.Errorf("%v after %s, %d destroyed; want an answer behind the client's end, which waits for the question", err, time.Since(begun), p.destroys.Load())
		}
		asking.Wait()
		time.Sleep(time.Second)
		if health := e.Health(); !health.Ready || health.Starts != 2 {
			t.Errorf("%+v", health)
		}
		p.closedNow.Store(true)
		time.Sleep(3 * time.Second)
		p.closedNow.Store(false)
		time.Sleep(time.Second)
		if health := e.Health(); !health.Ready || health.Starts != 3 || p.destroys.Load() != 2 {
			t.Errorf("a closed client: %+v, %d destroyed", health, p.destroys.Load())
		}
		if err := end(); !errors.Is(err, context.Canceled) || p.destroys.Load() != 3 {
			t.Errorf("%v, %d destroyed", err, p.destroys.Load())
		}
	})
}

// TestRetries: a setup that fails is made again with pauses that grow, one that takes
// long is waited for.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var setups atomic.Int64
		p := &played{exists: takes(0, 0)}
		p.setups = func() mooncake.Code {
			if setups.Add(1) < 20 {
				return -900
			}
			time.Sleep(5 * time.Minute)
			return 0
		}
		e, end := p.run(t, nil)
		if _, err := e.Exist(t.Context(), []string{"a"}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		// 0.1, 0.2, … 6.4 s and then 10 s each.
		time.Sleep(12_700*time.Millisecond - 1)
		if n := setups.Load(); n != 7 {
			t.Errorf("%d setups, want 7", n)
		}
		time.Sleep(130*time.Second - 10*time.Second + 1)
		synctest.Wait()
		if n := setups.Load(); n != 20 {
			t.Errorf("%d setups, want 20", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if health := e.Health(); health.Ready || health.Reason != "the Mooncake library has not returned from setup" {
			t.Errorf("%+v", health)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if health := e.Health(); !health.Ready || health.Starts != 1 {
			t.Errorf("%+v", health)
		}
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestEndOfRun: calls under way are waited for, for the limit and no longer.
func TestEndOfRun(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		after time.Duration
		left  bool
	}{{2 * time.Second, 2 * time.Second, false}, {time.Hour, 3 * time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			p := &played{gets: takes(c.takes, 64)}
			e, end := p.run(t, nil)
			result := make(chan error, 1)
			go func() {
				_, err := e.Get(t.Context(), one("a"))
				result <- err
			}()
			synctest.Wait()
			begun := time.Now()
			if err := end(); errors.Is(err, ErrLeft) != c.left || time.Since(begun) != c.after {
				t.Errorf("%v after %s, want %s", err, time.Since(begun), c.after)
			}
			if err := <-result; errors.Is(err, ErrLeft) != c.left || (err == nil) == c.left {
				t.Errorf("the call: %v", err)
			}
			if n := p.destroys.Load(); (n == 0) != c.left {
				t.Errorf("%d destroyed", n)
			}
			time.Sleep(c.takes) // for the goroutine that is left behind
		})
	}
}
