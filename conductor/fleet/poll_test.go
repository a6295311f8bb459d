package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// engines answers polls as engines do, without sockets, so that time may be virtual.
type engines struct {
	mu struct {
		sync.Mutex
		fault map[string]error // by host; nil: it is well
		hung  map[string]bool
		text  map[string]string
		asked map[string]int // by path
	}
}

func newEngines() *engines {
	e := &engines{}
	e.mu.fault, e.mu.hung, e.mu.text, e.mu.asked = map[string]error{}, map[string]bool{}, map[string]string{}, map[string]int{}
	return e
}

func (e *engines) set(host string, fault error, hung bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.fault[host], e.mu.hung[host] = fault, hung
}

// RoundTrip implements http.RoundTripper.
func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	fault, hung, text := e.mu.fault[r.URL.Host], e.mu.hung[r.URL.Host], e.mu.text[r.URL.Host]
	e.mu.asked[r.URL.Path]++
	e.mu.Unlock()
	switch {
	case fault != nil:
		return nil, fault
	case hung:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case r.URL.Path == "/v1/models":
		text = fmt.Sprintf(`{"data":[{"id":"m"},{"id":"only-%s","parent":"m"}]}`, r.URL.Host)
	case r.URL.Path == "/metrics" && text == "":
		text = "vllm:num_requests_running{engine=\"0\"} 0.0\n"
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}}, nil
}

func watched(t *testing.T, e *engines, hosts ...string) *Fleet {
	t.Helper()
	var list []Engine
	for _, host := range hosts {
		list = append(list, Engine{Name: host, URL: "http://" + host})
	}
	f, err := New(list, Options{PollEvery: time.Second, PollTimeout: time.Second, FailAfter: 3, RecoverAfter: 2, GiveUpAfter: time.Minute}, e, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func names(f *Fleet, model string) string {
	var all []string
	for _, c := range f.Candidates(model, nil) {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

// TestHealth: in use after one good poll at the start, out after three bad ones, back
// after two good ones.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		f := watched(t, e, "a", "b")
		if got := names(f, ""); got != "" {
			t.Errorf("%q are in use before anything is known", got)
		}
		pass(100 * time.Millisecond)
		if got := names(f, ""); got != "a b" {
			t.Fatalf("in use: %q", got)
		}
		e.set("a", errors.New("reset"), false)
		pass(2 * time.Second)
		if got := names(f, ""); got != "a b" {
			t.Errorf("in use after two polls that failed: %q", got)
		}
		e.set("a", nil, false)
		pass(time.Second)
		e.set("a", errors.New("reset"), false)
		pass(3 * time.Second)
		if got := names(f, ""); got != "b" {
			t.Errorf("in use after three in a row: %q", got)
		}
		e.set("a", nil, false)
		pass(time.Second)
		if got := names(f, ""); got != "b" {
			t.Errorf("in use after one that did well: %q", got)
		}
		pass(time.Second)
		if got := names(f, ""); got != "a b" {
			t.Errorf("in use after two: %q", got)
		}
		if v := f.Views()[0]; v.Counts.Outages != 1 || v.Counts.FailedPolls != 5 || v.Error != "" {
			t.Errorf("%+v", v)
		}
	})
}

// TestOutAtOnce: an engine that nobody listens for is out before the next poll, and one
// whose connection broke is polled at once.
func TestOutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		f := watched(t, e, "a", "b")
		pass(100 * time.Millisecond)
		f.Refused(0, syscall.ECONNREFUSED)
		if got := names(f, ""); got != "b" {
			t.Fatalf("in use: %q", got)
		}
		f.Broken(1) // a client's stream; the engine is well
		synctest.Wait()
		if got := names(f, ""); got != "b" {
			t.Errorf("in use: %q", got)
		}
		e.set("b", errors.New("reset"), false)
		f.Broken(1)
		synctest.Wait()
		if got := names(f, ""); got != "" {
			t.Errorf("in use after the poll that a broken connection asked for: %q", got)
		}
		e.set("b", nil, false)
		pass(2 * time.Second)
		if got := names(f, ""); got != "a b" {
			t.Errorf("in use later: %q", got)
		}
	})
}

// TestHungEngine: what hangs with its engine is ended after a while, and not before.
func TestHungEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		f := watched(t, e, "a")
		pass(100 * time.Millisecond)
		ctx, flight := f.Begin(t.Context(), Target{}, Load{Tokens: 1, Prefill: true})
		e.set("a", nil, true)
		pass(20 * time.Second)
		if names(f, "") != "" || ctx.Err() != nil {
			t.Errorf("in use: %q; the request: %v", names(f, ""), ctx.Err())
		}
		pass(time.Minute)
		if !errors.Is(context.Cause(ctx), ErrEngineDown) {
			t.Errorf("the request goes on: %v", context.Cause(ctx))
		}
		flight.End()
	})
}

// TestModels: requests go to who serves their model; a model that comes back with an
// engine is asked for again.
func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		f := watched(t, e, "a", "b")
		pass(100 * time.Millisecond)
		for model, want := range map[string]string{"": "a b", "m": "a b", "only-b": "b", "other": ""} {
			if got := names(f, model); got != want {
				t.Errorf("%q is served by %q, want %q", model, got, want)
			}
		}
		if m, ok := f.Model("only-a"); !ok || m.Parent != "m" {
			t.Errorf("%+v, %v", m, ok)
		}
		if all := f.Models(); len(all) != 3 {
			t.Errorf("%+v", all)
		}
		asked := func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.mu.asked["/v1/models"]
		}
		before := asked()
		pass(10 * time.Second)
		if asked() != before {
			t.Errorf("models were asked for %d times in ten seconds", asked()-before)
		}
		f.Refused(0, syscall.ECONNREFUSED)
		pass(10 * time.Second)
		if asked() != before+1 {
			t.Errorf("models were asked for %d times after an outage", asked()-before)
		}
	})
}

// TestAsleepAndDraining: neither gets requests.
func TestAsleepAndDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		e.mu.text["a"] = "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\nvllm:num_requests_running 0\n"
		f := watched(t, e, "a", "b")
		pass(100 * time.Millisecond)
		if got := names(f, ""); got != "b" {
			t.Errorf("in use: %q", got)
		}
		if f.Drain("c", true) || !f.Drain("b", true) {
			t.Error("b is known and c is not")
		}
		if n := f.Usable(); n != 0 {
			t.Errorf("%d in use", n)
		}
		f.Drain("b", false)
		if n := f.Usable(); n != 1 {
			t.Errorf("%d in use", n)
		}
	})
}

func TestCheck(t *testing.T) {
	good := Engine{Name: "a", URL: "http://a:1", Role: Decode, Ranks: 2}
	if err := Check([]Engine{good}, &Options{}); err != nil {
		t.Error(err)
	}
	bad := []Engine{good, good, {Name: "b", URL: "a:1"}, {Name: "c", URL: "http://c/v1"}, {URL: "http://d", Role: "x", Ranks: -1}}
	err := Check(bad, &Options{PollEvery: -1})
	if !errors.Is(err, ErrOptions) {
		t.Fatal(err)
	}
	for _, want := range []string{`named "a"`, `"a:1"`, "c/v1", "engine 4", `role "x"`, "-1 ranks", "negative"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing of %s", err, want)
		}
	}
}
