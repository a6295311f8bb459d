package router

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// TestContextsTakeRoom: what is put before small requests counts as if they had brought it.
func TestContextsTakeRoom(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.MaxBodyBytes, o.config.BodiesBytes = 20<<10, 30<<10 })
	content := fmt.Sprintf(`{"name":"large","model":"m","prompt":%q}`, strings.Repeat("x", 12<<10))
	if got := s.post("/v1/contexts", content); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	s.until("it is kept", func() bool {
		return strings.Contains(s.ask(http.MethodGet, "/v1/contexts/large", "").body, `"kept":{"a"`)
	})
	e := s.engines[0]
	hold := make(chan struct{})
	e.mu.Lock()
	e.mu.hold = hold
	e.mu.Unlock()
	first := make(chan *reply, 1)
	go func() { first <- s.post(pathCompletions, completion("one"), headerContext, "large") }()
	s.until("it is under way, with the question for its token ids", func() bool { return s.router.bodies.taken.Load() > 24<<10 })
	if got := s.post(pathCompletions, completion("two"), headerContext, "large"); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %.200s", got.status, got.body)
	}
	close(hold)
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("%d %.200s", got.status, got.body)
	}
	s.idle()
	s.until("all is given back", func() bool { return s.router.bodies.taken.Load() == 0 })
}

// TestExpectIsAnswered: what a client waits for before it sends its body is said by the router,
// which asks no engine for it.
func TestExpectIsAnswered(t *testing.T) {
	s := newSite(t, 1)
	if got := s.post(pathCompletions, completion("x"), "Expect", "100-continue"); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	if got := s.engines[0].requests()[0].header.Get("Expect"); got != "" {
		t.Errorf("the engine was asked for %q", got)
	}
}

// TestModelsThatAreOut: of a model that was there is said that it will be again, of one that
// never was that it is none.
func TestModelsThatAreOut(t *testing.T) {
	s := newSiteOfTwoModels(t)
	e := s.engines[1]
	ask := func(model string, want int) {
		t.Helper()
		if got := s.post(pathCompletions, fmt.Sprintf(`{"model":%q,"prompt":"x"}`, model)); got.status != want || want == http.StatusServiceUnavailable && got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %+v, want %d", model, got, want)
		}
	}
	ask("other", http.StatusOK)
	s.ask(http.MethodPost, "/engines/b/drain", "")
	ask("other", http.StatusServiceUnavailable)
	s.ask(http.MethodPost, "/engines/b/resume", "")
	ask("other", http.StatusOK)
	e.kill()
	s.until("b is out", func() bool { return s.fleet.Usable() == 1 })
	s.until("nobody says that he serves it", func() bool { _, ok := s.fleet.Model("other"); return !ok })
	ask("other", http.StatusServiceUnavailable)
	ask("third", http.StatusNotFound)
	if s.router.placer.mayServe("other", time.Now().Add(servedKeeps)) {
		t.Error("it is remembered for ever")
	}
	for i := range 2 * maxServed {
		s.router.placer.serves(fmt.Sprint(i), time.Now())
	}
	if n := len(s.router.placer.served); n > 2 {
		t.Errorf("%d models are remembered of which no engine has said anything", n)
	}
}

// TestNamesThatAreKeptAreShort: decisions are remembered, whatever clients call a model.
func TestNamesThatAreKeptAreShort(t *testing.T) {
	s := newSite(t, 1)
	e := s.engines[0]
	name := strings.Repeat("m", 1<<20)
	e.mu.Lock()
	e.mu.models = fmt.Sprintf(`{"id":%q}`, name)
	e.mu.Unlock()
	e.kill()
	s.until("it is out", func() bool { return s.fleet.Usable() == 0 })
	e.start(t)
	s.until("it serves the model", func() bool { _, ok := s.fleet.Model(name); return ok })
	if got := s.post(pathCompletions, fmt.Sprintf(`{"model":%q,"prompt":"x"}`, name)); got.status != http.StatusOK {
		t.Fatalf("%d %.200s", got.status, got.body)
	}
	if d := s.decision(); len(d.Model) != maxName {
		t.Errorf("%d bytes of a name are kept", len(d.Model))
	}
}

// slowIndex takes its time to say whose events are followed.
type slowIndex struct {
	Index
	mu    sync.Mutex
	asked int
	hold  chan struct{}
}

func (x *slowIndex) Services() []contract.Status {
	x.mu.Lock()
	x.asked++
	n := x.asked
	x.mu.Unlock()
	if n > 1 {
		<-x.hold
	}
	return []contract.Status{{Service: contract.Service{Type: contract.TypeVLLM, Instance: fmt.Sprint(n)}}}
}

// TestServicesAreLookedAtByOne: the rest go by what was known a moment ago.
func TestServicesAreLookedAtByOne(t *testing.T) {
	x := &slowIndex{hold: make(chan struct{})}
	c := &catalog{index: x}
	now := time.Now()
	if s := c.services(now); !s.follows["1"] {
		t.Fatalf("%+v", s)
	}
	now = now.Add(2 * catalogAge)
	fresh := make(chan *services)
	go func() { fresh <- c.services(now) }()
	for asked := 1; asked < 2; {
		x.mu.Lock()
		asked = x.asked
		x.mu.Unlock()
	}
	for range 100 {
		if s := c.services(now); !s.follows["1"] {
			t.Fatalf("%+v", s)
		}
	}
	close(x.hold)
	if s := <-fresh; !s.follows["2"] || !c.services(now).follows["2"] || x.asked != 2 {
		t.Errorf("%+v, asked %d times", s, x.asked)
	}
}

// TestClientsThatLeaveAreCounted: also before anything was said to them, and their engine hears
// of it.
func TestClientsThatLeaveAreCounted(t *testing.T) {
	s := newSite(t, 2)
	for _, e := range s.engines {
		e.do(hangs)
	}
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+pathCompletions, strings.NewReader(completion("x")))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		response, err := s.client.Do(request)
		if err == nil {
			response.Body.Close()
		}
		done <- err
	}()
	s.until("an engine has it", func() bool { return len(s.engines[0].requests())+len(s.engines[1].requests()) == 1 })
	leave()
	if err := <-done; err == nil {
		t.Error("it was answered")
	}
	s.until("it is counted", func() bool { return s.router.Stats().Left == 1 })
	if n := len(s.engines[0].requests()) + len(s.engines[1].requests()); n != 1 {
		t.Errorf("%d engines were asked", n)
	}
	s.idle()
}
