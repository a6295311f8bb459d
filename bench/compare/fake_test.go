package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeEngine serves what a run asks an engine for. Its outputs depend on the prompt
// alone.
type fakeEngine struct {
	server *httptest.Server

	mu struct {
		sync.Mutex
		own, store map[string]bool
		// asked are the prompts' lengths, resets what was emptied, in order.
		asked  []int
		resets []string
		// garble the output of prompts that come from the store.
		garble bool
	}
}

func newFakeEngine(t *testing.T) *fakeEngine {
	e := &fakeEngine{}
	e.mu.own, e.mu.store = map[string]bool{}, map[string]bool{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", e.complete)
	mux.HandleFunc("POST /reset_prefix_cache", e.reset)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "vllm:num_requests_running{a=\"b\"} 0\nvllm:num_requests_waiting 0.0\nvllm:kv_cache_usage_perc 0.0\n")
	})
	e.server = httptest.NewServer(mux)
	t.Cleanup(e.server.Close)
	return e
}

func (e *fakeEngine) complete(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt    []int `json:"prompt"`
		MaxTokens int   `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Prompt) == 0 {
		http.Error(w, "no prompt", http.StatusBadRequest)
		return
	}
	key := fmt.Sprint(body.Prompt)
	e.mu.Lock()
	e.mu.asked = append(e.mu.asked, len(body.Prompt))
	cached, wrongBy := 0, 0
	if e.mu.own[key] || e.mu.store[key] {
		cached = (len(body.Prompt) - 1) / 128 * 128
	}
	if e.mu.garble && e.mu.store[key] && !e.mu.own[key] {
		wrongBy = 1
	}
	e.mu.own[key], e.mu.store[key] = true, true
	e.mu.Unlock()
	for i := range body.MaxTokens {
		id := fmt.Sprintf("token_id:%d", body.Prompt[i%len(body.Prompt)]+wrongBy)
		fmt.Fprintf(w, `data: {"choices":[{"logprobs":{"tokens":[%q],"token_logprobs":[-0.5],"top_logprobs":[{%q:-0.5,"other":-2}]}}]}`+"\n\n", id, id)
	}
	fmt.Fprintf(w, `data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\ndata: [DONE]\n\n", cached)
}

func (e *fakeEngine) reset(_ http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.mu.own)
	what := "own"
	if r.URL.Query().Get("reset_external") == "true" {
		clear(e.mu.store)
		what = "all"
	}
	e.mu.resets = append(e.mu.resets, what)
}

// fakeSystem is a fake engine as a system. A request takes it a second of CPU time.
type fakeSystem struct {
	hostedSystem
	engine *fakeEngine
	closed *closings
}

func (s *fakeSystem) CPUTime() (time.Duration, error) {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	return time.Duration(len(s.engine.mu.asked)) * time.Second, nil
}

func (s *fakeSystem) HoldPrograms() (int64, error) { return 1 << 20, nil }

func (s *fakeSystem) Close() error {
	s.client.Close()
	s.closed.add(s.name)
	return nil
}

type closings struct {
	mu    sync.Mutex
	names []string
}

func (c *closings) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
	slices.Sort(c.names)
}

// fakeLauncher launches fakes; fail names a system that does not start.
type fakeLauncher struct {
	t       *testing.T
	fail    string
	garble  string
	closed  closings
	mu      sync.Mutex
	systems map[string]*fakeEngine
}

func (l *fakeLauncher) Prepare(context.Context, string, int64) (Shared, error) {
	return nothingShared{}, nil
}

func (l *fakeLauncher) Launch(_ context.Context, name, _ string, _ int64, _ int) (System, error) {
	if name == l.fail {
		return nil, fmt.Errorf("%s is out of order", name)
	}
	engine := newFakeEngine(l.t)
	engine.mu.garble = name == l.garble
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.systems == nil {
		l.systems = map[string]*fakeEngine{}
	}
	l.systems[name] = engine
	return &fakeSystem{hostedSystem{name: name, client: NewClient(engine.server.URL)}, engine, &l.closed}, nil
}

// smallOptions make a run of moments.
func smallOptions() Options {
	o := Options{Models: []string{"kv2k"}, Tokens: []int{256, 300}, Prompts: 2, Rounds: 2, OverlapRounds: 2, Arrivals: 3, Load: 2, OutputTokens: 2}
	o.SetDefaults()
	return o
}

func newRun(t *testing.T, launcher *fakeLauncher, options Options) *Run {
	return &Run{
		Options: options, Launcher: launcher, Quiet: Quiet{Window: time.Microsecond, Limit: time.Minute},
		Progress: func(format string, args ...any) { t.Log(strings.TrimSpace(fmt.Sprintf(format, args...))) },
		Save:     func([]Pair) error { return nil },
	}
}
