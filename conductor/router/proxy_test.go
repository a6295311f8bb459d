package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// TestRequestsArePassedOn: what clients send reaches an engine as it is, and its answer
// them.
func TestRequestsArePassedOn(t *testing.T) {
	s := newSite(t, 2)
	content := `{ "model":"m", "prompt" : "hello \u0041", "temperature":0.50, "x":[1 ,2] }`
	got := s.post(pathCompletions+"?a=b", content, "Authorization", "Bearer mine", "Connection", "X-Hop", "X-Hop", "1", "X-Request-Id", "7")
	if got.status != http.StatusOK || got.err != nil {
		t.Fatalf("%+v", got)
	}
	mustContain(t, got.body, `"tokens":7`)
	if got.engine() == "" || got.header.Get(headerDecision) != "1" || got.header.Get(headerCached) != "0" {
		t.Errorf("%v", got.header)
	}
	var seen []fakeRequest
	for _, e := range s.engines {
		seen = append(seen, e.requests()...)
	}
	if len(seen) != 1 || seen[0].raw != content {
		t.Fatalf("engines saw %+v", seen)
	}
	h := seen[0].header
	if h.Get("Authorization") != "Bearer mine" || h.Get("X-Request-Id") != "7" || h.Get("X-Hop") != "" || h.Get("X-Data-Parallel-Rank") != "" || h.Get("X-Forwarded-For") == "" {
		t.Errorf("%v", h)
	}
	s.idle()
}

// TestStreamsAreNotHeldBack: a token reaches the client before the next is made, and an
// engine hears of a client that has gone.
func TestStreamsAreNotHeldBack(t *testing.T) {
	s := newSite(t, 1)
	s.engines[0].do(hangsBehind)
	ctx, leave := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+pathChat, strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(response.Body).ReadString('\n') // the engine makes no second one
	if err != nil || !strings.Contains(line, `"n":0`) {
		t.Errorf("%q, %v", line, err)
	}
	leave()
	response.Body.Close()
	e := s.engines[0]
	s.until("the engine has heard that the client has gone", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.mu.gone == 1 })
	s.idle()
	if n := s.router.Stats().Left; n != 1 {
		t.Errorf("%d clients left", n)
	}
	if n := s.fleet.Usable(); n != 1 {
		t.Errorf("the engine is out because a client left")
	}
}

// TestRetriesBeforeTheFirstByte: whatever an engine does before it has said something,
// another one is asked; afterwards none is.
func TestRetriesBeforeTheFirstByte(t *testing.T) {
	for name, c := range map[string]struct {
		does    behaviour
		stream  bool
		again   bool
		attempt string
	}{
		"overloaded":                {overloaded, true, true, "503"},
		"broken before the header":  {broken, true, true, "EOF"},
		"broken behind the header":  {brokenBehind, true, true, "EOF"},
		"broken, no stream":         {broken, false, true, "EOF"},
		"broken amid the tokens":    {brokenAmid, true, false, ""},
		"the request is wrong":      {refusesRequests, true, false, ""},
		"the request is wrong, too": {refusesRequests, false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2, func(o *siteOptions) { o.config.Policy = RoundRobin })
			s.engines[0].do(c.does)
			got := s.post(pathCompletions, completion("x", fmt.Sprintf(`"stream":%v`, c.stream)))
			s.idle()
			other := s.engines[1].requests()
			d := s.decision()
			switch {
			case c.again && (got.status != http.StatusOK || got.err != nil || got.engine() != "b" || len(other) != 1):
				t.Errorf("%+v; b has seen %d", got, len(other))
			case c.again && (len(d.Attempts) != 1 || d.Attempts[0].Engine != "a" || !strings.Contains(d.Attempts[0].Error, c.attempt)):
				t.Errorf("attempts %+v", d.Attempts)
			case !c.again && (got.engine() != "a" || len(other) != 0):
				t.Errorf("%+v; b has seen %d", got, len(other))
			case c.does == brokenAmid:
				if got.err == nil {
					t.Error("an answer that broke off seems whole")
				}
				mustContain(t, got.body, `"n":1`, "broke off")
				if strings.Contains(got.body, "[DONE]") || d.Failed == "" {
					t.Errorf("%q, %+v", got.body, d)
				}
			case c.does == refusesRequests:
				if got.status != http.StatusBadRequest || got.body != `{"error":{"message":"no"}}` {
					t.Errorf("%+v", got)
				}
			}
			if n := s.router.Stats().Decisions; n != 1 {
				t.Errorf("%d decisions of one request", n)
			}
		})
	}
}

// TestHalfAnEvent: of one that broke off amid an event the half is not ended, for it would
// be taken for a whole one.
func TestHalfAnEvent(t *testing.T) {
	s := newSite(t, 1)
	s.engines[0].do(brokenHalf)
	got := s.post(pathCompletions, completion("x", `"stream":true`))
	if got.err == nil || !strings.HasSuffix(got.body, "\n\ndata: {\"engine\"") {
		t.Errorf("%q, %v", got.body, got.err)
	}
	for tail, between := range map[string]bool{"": true, "x\n\n": true, "\r\n\r\n": true, "x\n": false, "\n\nx": false} {
		if endsEvent([]byte(tail)) != between {
			t.Errorf("%q", tail)
		}
	}
	if got := lastOf(lastOf([]byte("abc"), []byte("\n")), []byte("\n")); string(got) != "bc\n\n" {
		t.Errorf("%q", got)
	}
}

// TestClientsThatDoNotRead: they lose their place to others.
func TestClientsThatDoNotRead(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.WriteTimeout = 50 * time.Millisecond })
	s.engines[0].do(floods)
	for range 2 {
		c, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		content := completion("x", `"stream":true`)
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", pathCompletions, len(content), content)
	}
	s.until("they have lost their places", func() bool { return s.router.Stats().Left == 2 })
	s.idle()
}

// TestPriorityIsOfPrompts: what is not a prompt is sent on as it came.
func TestPriorityIsOfPrompts(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.SendPriority = true })
	content := `{"model":"m","input":"hello"}`
	mustContain(t, s.post("/v1/embeddings", content).body, fmt.Sprintf(`"length":%d`, len(content)))
	s.post(pathCompletions, completion("x"))
	if r := s.engines[0].requests(); len(r) != 1 || r[0].body["priority"] == nil {
		t.Errorf("%+v", r)
	}
}

// TestWhoIsOut: an engine is out at once only if nobody listens there. For what is wrong
// here, or with names, it is not.
func TestWhoIsOut(t *testing.T) {
	s := newSite(t, 2)
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: err} }
	s.router.failed(fleet.Target{}, dial(syscall.EMFILE))
	s.router.failed(fleet.Target{}, dial(&net.DNSError{Err: "no such host"}))
	if v := s.fleet.Views()[0]; v.Counts.Refused != 0 || v.Counts.Broken != 0 || s.fleet.Usable() != 2 {
		t.Errorf("%+v", v)
	}
	s.router.failed(fleet.Target{}, dial(syscall.ECONNREFUSED))
	if v := s.fleet.Views()[0]; v.Counts.Refused != 1 {
		t.Errorf("%+v", v)
	}
}

// TestNobodyAnswers: each engine is asked once, and not more than so many.
func TestNobodyAnswers(t *testing.T) {
	s := newSite(t, 4, func(o *siteOptions) { o.config.Attempts = 3 })
	for _, e := range s.engines {
		e.do(broken)
	}
	got := s.post(pathCompletions, completion("x"))
	if got.status != http.StatusBadGateway {
		t.Errorf("%+v", got)
	}
	asked := 0
	for _, e := range s.engines {
		n := len(e.requests())
		if asked += n; n > 1 {
			t.Errorf("%s was asked %d times", e.name, n)
		}
	}
	if asked != 3 {
		t.Errorf("%d were asked", asked)
	}
	s.idle()

	few := newSite(t, 2)
	for _, e := range few.engines {
		e.do(overloaded)
	}
	// What the last of them said is the answer, also where one asked later did not answer at
	// all.
	for range 2 {
		if got := few.post(pathCompletions, completion("x")); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || got.body != "full\n" || got.engine() == "" {
			t.Errorf("%+v", got)
		}
		if d := few.decision(); d.Status != http.StatusServiceUnavailable || len(d.Attempts) != 2 {
			t.Errorf("%+v", d)
		}
		few.engines[1].do(broken)
	}
	few.idle()
}

// TestAnEngineDies: its own streams fail, no others; it is out at once, and back when it
// is well.
func TestAnEngineDies(t *testing.T) {
	s := newSite(t, 3, func(o *siteOptions) { o.config.Policy = RoundRobin })
	for _, e := range s.engines {
		e.do(hangsBehind)
	}
	type stream struct {
		engine string
		body   *http.Response
		lines  *bufio.Reader
	}
	var streams []stream
	for range 6 {
		response, err := s.client.Post(s.server.URL+pathCompletions, "application/json", strings.NewReader(completion("x", `"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines := bufio.NewReader(response.Body)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, stream{response.Header.Get(headerEngine), response, lines})
	}
	for _, e := range s.engines {
		e.do(answers)
	}
	s.engines[1].kill()
	for i := range 20 {
		if got := s.post(pathCompletions, completion(fmt.Sprint(i), `"stream":true`)); got.status != http.StatusOK || got.err != nil || got.engine() == "b" {
			t.Fatalf("request %d: %+v", i, got)
		}
	}
	for _, one := range streams {
		if one.engine != "b" {
			continue
		}
		if rest, err := io.ReadAll(one.lines); err == nil {
			t.Errorf("a stream of the engine that died ended in order: %q", rest)
		}
	}
	alive := 0
	for _, v := range s.fleet.Views() {
		alive += v.Ranks[0].OurRequests
		if v.Name == "b" && (v.InUse || v.Counts.Outages != 1) {
			t.Errorf("%+v", v)
		}
	}
	if alive != 4 {
		t.Errorf("%d streams of the other engines go on, want 4", alive)
	}
	s.engines[1].start(t)
	s.until("the engine is back", func() bool { return s.fleet.Usable() == 3 })
	s.until("it gets requests", func() bool { return s.post(pathCompletions, completion("y")).engine() == "b" })
}

// TestLimits: of bodies, of what is no object, of requests at a time.
func TestLimits(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.MaxBodyBytes, o.config.MaxInFlight, o.config.MaxWaiting = 1000, 1, 1 })
	for content, want := range map[string]int{
		completion(strings.Repeat("x", 1000)): http.StatusRequestEntityTooLarge,
		`[]`:                                  http.StatusBadRequest,
		`{"model":"m","model":"n"}`:           http.StatusBadRequest,
		`{"model":"other","prompt":"x"}`:      http.StatusNotFound,
	} {
		if got := s.post(pathCompletions, content); got.status != want {
			t.Errorf("%.60s: %+v, want %d", content, got, want)
		}
	}
	// A body whose length is not told.
	request, err := http.NewRequest(http.MethodPost, s.server.URL+pathCompletions, io.MultiReader(strings.NewReader(completion(strings.Repeat("x", 2000)))))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := s.client.Do(request); err != nil || response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%v, %v", response, err)
	} else {
		response.Body.Close()
	}
	for _, headers := range [][]string{{headerTTFT, "soon"}, {headerTTFT, "-1"}, {headerTBT, "NaN"}, {headerPriority, "high"}, {headerPriority, "9999999"}, {headerTenant, strings.Repeat("x", 300)}} {
		if got := s.post(pathCompletions, completion("x"), headers...); got.status != http.StatusBadRequest {
			t.Errorf("%v: %+v", headers, got)
		}
	}
	s.idle()
	s.engines[0].do(hangs)
	ctx, leave := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	begin := func(priority string, want int) (ended *atomic.Bool) {
		ended = &atomic.Bool{}
		clients.Go(func() {
			defer ended.Store(true)
			request, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+pathCompletions, strings.NewReader(completion("x")))
			request.Header.Set(headerPriority, priority)
			response, err := s.client.Do(request)
			if err != nil {
				if want != 0 {
					t.Errorf("priority %s: %v, want %d", priority, err, want)
				}
				return
			}
			response.Body.Close()
			if response.StatusCode != want || response.Header.Get("Retry-After") == "" {
				t.Errorf("priority %s: %d, want %d", priority, response.StatusCode, want)
			}
		})
		return ended
	}
	taken := func(inFlight, waiting int) {
		s.until(fmt.Sprintf("%d are under way and %d wait", inFlight, waiting), func() bool {
			stats := s.router.Stats()
			return stats.InFlight == inFlight && stats.Waiting == waiting
		})
	}
	begin("0", 0)
	taken(1, 0)
	refused := begin("5", http.StatusTooManyRequests) // until one comes that is more urgent
	taken(1, 1)
	begin("1", 0)
	s.until("the less urgent was turned away, and has heard it", func() bool { return s.router.Stats().Full == 1 && refused.Load() })
	leave()
	clients.Wait()
	s.idle()
}

// TestOtherPaths: what is not understood is forwarded, what is for operators is not.
func TestOtherPaths(t *testing.T) {
	s := newSite(t, 2)
	got := s.post("/v1/embeddings?x=1", "not json")
	if got.status != http.StatusOK || got.header.Get("X-Engine-Says") != "yes" {
		t.Errorf("%+v", got)
	}
	mustContain(t, got.body, `"query":"x=1"`, `"length":8`)
	for _, line := range []string{"POST /v1/audio/%2e%2e/%2e%2e/reset_prefix_cache", "CONNECT /v1/audio/../../reset_prefix_cache", "POST /v1/audio/x", "CONNECT /v1/completions"} {
		method, path, _ := strings.Cut(line, " ")
		c, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", method, path)
		if status, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(status, " 404 ") {
			t.Errorf("%s: %q, %v", line, status, err)
		}
	}
	for _, path := range []string{"/metrics", "/reset_prefix_cache", "/v1/load_lora_adapter", "/sleep", "/", "/v1", "/v1/audio/", "/v1/completions/../../metrics"} {
		if got := s.post(path, "{}"); got.status != http.StatusNotFound && got.status != http.StatusMovedPermanently && got.status != http.StatusTemporaryRedirect {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if n := s.engines[0].asked("/reset_prefix_cache") + s.engines[1].asked("/reset_prefix_cache"); n != 0 {
		t.Error("an engine was asked for what is not for clients")
	}
	models := s.ask(http.MethodGet, "/v1/models", "")
	mustContain(t, models.body, `"id":"m"`, `"id":"adapter"`, `"parent":"m"`, `"max_model_len":100000`)
	if strings.Count(models.body, `"id":"m"`) != 1 {
		t.Error(models.body)
	}
	if got := s.ask(http.MethodGet, "/v1/models/m", ""); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
	if got := s.ask(http.MethodGet, "/v1/models/n", ""); got.status != http.StatusNotFound {
		t.Errorf("%+v", got)
	}
}

// TestAdmission: a request that can't be in time is refused with 429 before an engine
// hears of it, and told when to come again.
func TestAdmission(t *testing.T) {
	s := newSite(t, 1)
	prompt := completion(long("abc", 4000))
	if got := s.post(pathCompletions, prompt, headerTTFT, "1us"); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("%+v", got)
	} else {
		mustContain(t, got.body, scheduler.LateFirstToken.String())
	}
	if got := s.post(pathCompletions, prompt, headerTBT, "1us"); got.status != http.StatusTooManyRequests {
		t.Errorf("%+v", got)
	} else {
		mustContain(t, got.body, scheduler.DecodeBusy.String())
	}
	if n := len(s.engines[0].requests()); n != 0 {
		t.Errorf("the engine saw %d requests", n)
	}
	if got := s.post(pathCompletions, prompt, headerTTFT, "1h", headerTBT, "10"); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
	refused := s.ask(http.MethodGet, "/decisions?refused", "")
	var list struct{ Decisions []Decision }
	if err := json.Unmarshal([]byte(refused.body), &list); err != nil || len(list.Decisions) != 2 || list.Decisions[0].Refused != "decode-busy" || list.Decisions[0].Status != 429 {
		t.Errorf("%s, %v", refused.body, err)
	}
	if stats := s.router.Stats(); stats.RefusedLate != 1 || stats.RefusedBusy != 1 {
		t.Errorf("%+v", stats)
	}
	s.idle()
}

// firstIsOver is time.AfterFunc with a first timer that is over at once, and others that
// never are.
func firstIsOver() func(time.Duration, func()) *time.Timer {
	begun := false
	return func(_ time.Duration, over func()) *time.Timer {
		if begun {
			return time.AfterFunc(time.Hour, over)
		}
		begun = true
		return time.AfterFunc(0, over)
	}
}

// TestHungEngines: an engine that says nothing in time is left, and so is one that is out
// for too long.
func TestHungEngines(t *testing.T) {
	s := newSite(t, 2, func(o *siteOptions) { o.config.Policy = RoundRobin })
	s.engines[0].do(hangs)
	s.router.after = firstIsOver()
	if got := s.post(pathCompletions, completion("x", `"stream":true`)); got.status != http.StatusOK || got.engine() != "b" {
		t.Errorf("%+v", got)
	}
	mustContain(t, s.decision().Attempts[0].Error, "no first byte in time")
	s.idle()
}
