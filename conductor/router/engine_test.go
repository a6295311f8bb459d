package router

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a fake engine does with a request.
type behaviour int

const (
	answers behaviour = iota
	overloaded
	broken          // the connection ends before an answer
	brokenBehind    // and behind the header
	brokenAmid      // and behind two tokens
	hangs           // until the client goes
	hangsBehind     // behind the first token
	refusesRequests // with 400
	floods          // with more than connections hold
	brokenHalf      // amid the third token
)

const blockTokens = 16

// fakeEngine speaks what we need of vLLM's API: its tokens are a prompt's bytes, and its
// cache never evicts.
type fakeEngine struct {
	name    string
	server  *httptest.Server
	address string

	mu struct {
		sync.Mutex
		does     behaviour
		requests []fakeRequest
		cached   map[string]bool // prefixes of whole blocks
		stored   *fakeStore
		asked    map[string]int
		models   string
		// hold, if there is one, keeps /tokenize and completions waiting.
		hold chan struct{}
		gone int // requests whose client went
	}
}

// fakeStore is one that engines share. What they put is there when the index says so, as
// engines store behind their answers.
type fakeStore struct {
	mu     sync.Mutex
	coming []string
	blocks map[string]bool
}

type fakeRequest struct {
	path   string
	header http.Header
	body   map[string]json.RawMessage
	raw    string
	tokens []byte
	// computed tokens, those that were not cached.
	computed int
}

func newFakeEngine(t testing.TB, name string) *fakeEngine {
	t.Helper()
	e := &fakeEngine{name: name}
	e.mu.cached, e.mu.asked, e.mu.models = map[string]bool{}, map[string]int{}, `{"id":"m","max_model_len":100000},{"id":"adapter","parent":"m"}`
	e.server = httptest.NewServer(e)
	e.address = e.server.Listener.Addr().String()
	t.Cleanup(func() { e.server.CloseClientConnections(); e.server.Close() })
	return e
}

// kill ends the engine with all its connections, and start begins it anew, with nothing
// in its cache.
func (e *fakeEngine) kill() {
	e.server.CloseClientConnections()
	e.server.Close()
}

func (e *fakeEngine) start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", e.address)
	for deadline := time.Now().Add(time.Minute); err != nil; listener, err = net.Listen("tcp", e.address) {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // somebody else's connection has the port for a moment
	}
	e.mu.Lock()
	e.mu.cached = map[string]bool{}
	e.mu.Unlock()
	e.server = httptest.NewUnstartedServer(e)
	e.server.Listener.Close()
	e.server.Listener = listener
	e.server.Start()
}

func (e *fakeEngine) do(b behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.does = b
}

func (e *fakeEngine) requests() []fakeRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]fakeRequest(nil), e.mu.requests...)
}

func (e *fakeEngine) asked(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.asked[path]
}

// ServeHTTP implements http.Handler.
func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.mu.asked[r.URL.Path]++
	does, models, hold := e.mu.does, e.mu.models, e.mu.hold
	e.mu.Unlock()
	switch r.URL.Path {
	case "/health":
	case "/metrics":
		fmt.Fprintf(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n")
	case "/v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, models)
	case "/tokenize":
		e.wait(r, hold)
		tokens := tokensOf(parse(raw))
		fmt.Fprintf(w, `{"count":%d,"max_model_len":100000,"tokens":%s,"token_strs":null}`, len(tokens)/4, formatIDs(tokens))
	case pathCompletions, pathChat:
		e.wait(r, hold)
		e.complete(w, r, raw, does)
	case "/v1/embeddings":
		w.Header().Set("X-Engine-Says", "yes")
		fmt.Fprintf(w, `{"path":%q,"query":%q,"length":%d}`, r.URL.Path, r.URL.RawQuery, len(raw))
	default:
		http.NotFound(w, r)
	}
}

func (e *fakeEngine) wait(r *http.Request, hold chan struct{}) {
	if hold == nil {
		return
	}
	select {
	case <-hold:
	case <-r.Context().Done():
		e.mu.Lock()
		e.mu.gone++
		e.mu.Unlock()
	}
}

func parse(raw []byte) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields)
	return fields
}

// tokensOf are the bytes of a prompt, and of a chat's messages as a template would join
// them.
func tokensOf(fields map[string]json.RawMessage) []byte {
	var text string
	var ids []uint32
	if json.Unmarshal(fields["prompt"], &ids) == nil && ids != nil {
		var tokens []byte
		for _, id := range ids {
			tokens = binary.LittleEndian.AppendUint32(tokens, id)
		}
		return tokens
	}
	if _, ok := fields["messages"]; ok {
		var messages []struct{ Role, Content string }
		_ = json.Unmarshal(fields["messages"], &messages)
		for _, m := range messages {
			text += "<" + m.Role + ">" + m.Content
		}
		if string(fields["add_generation_prompt"]) != "false" {
			text += "<assistant>"
		}
		text = string(fields["tools"]) + string(fields["chat_template_kwargs"]) + text
	} else {
		_ = json.Unmarshal(fields["prompt"], &text)
	}
	var tokens []byte
	for _, c := range []byte(text) {
		tokens = binary.LittleEndian.AppendUint32(tokens, uint32(c))
	}
	return tokens
}

func saltOf(fields map[string]json.RawMessage) string { return string(fields["cache_salt"]) + "|" }

// prefixes calls visit for each prefix of whole blocks, until it says no.
func prefixes(salt string, tokens []byte, visit func(name string, tokens int) bool) {
	for n := blockTokens; n*4 <= len(tokens); n += blockTokens {
		if !visit(salt+string(tokens[:n*4]), n) {
			return
		}
	}
}

func (e *fakeEngine) complete(w http.ResponseWriter, r *http.Request, raw []byte, does behaviour) {
	fields := parse(raw)
	tokens := tokensOf(fields)
	e.mu.Lock()
	cached := 0
	prefixes(saltOf(fields), tokens, func(name string, n int) bool {
		if !e.mu.cached[name] && !e.mu.stored.has(name) {
			return false
		}
		cached = n
		return true
	})
	if does == answers || does >= brokenAmid && does != refusesRequests {
		prefixes(saltOf(fields), tokens, func(name string, _ int) bool {
			e.mu.cached[name] = true
			e.mu.stored.put(name)
			return true
		})
	}
	e.mu.requests = append(e.mu.requests, fakeRequest{r.URL.Path, r.Header.Clone(), fields, string(raw), tokens, len(tokens)/4 - cached})
	e.mu.Unlock()
	switch does {
	case overloaded:
		http.Error(w, "full", http.StatusServiceUnavailable)
		return
	case refusesRequests:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"no"}}`)
		return
	case broken:
		panic(http.ErrAbortHandler)
	case hangs:
		<-r.Context().Done()
		return
	}
	output := 4
	if n := string(fields["max_tokens"]); n != "" {
		_, _ = fmt.Sscan(n, &output)
	}
	if string(fields["stream"]) != "true" {
		if does == brokenBehind || does == brokenAmid {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"engine":%q,"tokens":%d,"computed":%d}`, e.name, len(tokens)/4, len(tokens)/4-cached)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.(http.Flusher).Flush()
	if does == brokenBehind {
		panic(http.ErrAbortHandler)
	}
	for i := range output {
		fmt.Fprintf(w, "data: {\"engine\":%q,\"n\":%d}\n\n", e.name, i)
		w.(http.Flusher).Flush()
		switch {
		case does == brokenAmid && i == 1:
			panic(http.ErrAbortHandler)
		case does == brokenHalf && i == 1:
			fmt.Fprint(w, "data: {\"engine\"")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case does == floods:
			for range 4096 {
				if _, err := fmt.Fprintf(w, "data: %s\n\n", strings.Repeat("x", 32<<10)); err != nil {
					return
				}
			}
		case does == hangsBehind:
			<-r.Context().Done()
			e.mu.Lock()
			e.mu.gone++
			e.mu.Unlock()
			return
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (s *fakeStore) has(name string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks[name]
}

func (s *fakeStore) put(name string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming = append(s.coming, name)
}

// arrive stores what was put.
func (s *fakeStore) arrive() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		s.blocks = map[string]bool{}
	}
	for _, name := range s.coming {
		s.blocks[name] = true
	}
	s.coming = nil
}

// fakeIndex looks into engines' caches.
type fakeIndex struct {
	engines []*fakeEngine
	store   *fakeStore
	// late makes the store's blocks stored and known after so many questions only.
	mu   sync.Mutex
	late int
	// unknown engines' events are not followed.
	unknown map[string]bool
}

func (x *fakeIndex) is(late int, unknown ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.late, x.unknown = late, map[string]bool{}
	for _, name := range unknown {
		x.unknown[name] = true
	}
}

func (x *fakeIndex) known() (engines []*fakeEngine) {
	for _, e := range x.engines {
		x.mu.Lock()
		if !x.unknown[e.name] {
			engines = append(engines, e)
		}
		x.mu.Unlock()
	}
	return engines
}

// Services implements Index. The store is one as POST /register makes it: of its first
// rank, under a name of its own.
func (x *fakeIndex) Services() []contract.Status {
	var all []contract.Status
	add := func(kind, instance string) {
		s := contract.Service{Type: kind, Instance: instance, Model: "m", Tenant: prefixindex.DefaultTenant, BlockTokens: blockTokens}
		all = append(all, contract.Status{Service: s, State: contract.Complete})
	}
	for _, e := range x.known() {
		add(contract.TypeVLLM, e.name)
	}
	if x.store != nil {
		add(contract.TypeMooncake, "store")
	}
	return all
}

// Query implements Index.
func (x *fakeIndex) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	if q.Model != "m" || q.Tenant != prefixindex.DefaultTenant {
		return dst
	}
	x.mu.Lock()
	x.late--
	known := x.late < 0
	x.mu.Unlock()
	if known {
		x.store.arrive()
	}
	salt := "|"
	if q.CacheSalt != "" {
		quoted, _ := json.Marshal(q.CacheSalt)
		salt = string(quoted) + "|"
	}
	for _, e := range x.known() {
		m := contract.RankMatch{Match: prefixindex.Match{Instance: e.name}, State: contract.Complete}
		e.mu.Lock()
		prefixes(salt, q.Tokens, func(name string, n int) bool {
			gpu, store := e.mu.cached[name], known && x.store.has(name)
			if gpu && m.In[prefixindex.GPU] == n-blockTokens {
				m.In[prefixindex.GPU] = n
			}
			if store && m.In[prefixindex.CPU] == n-blockTokens {
				m.In[prefixindex.CPU] = n
			}
			if gpu || store {
				m.Through[prefixindex.Disk] = n
			}
			return gpu || store
		})
		e.mu.Unlock()
		dst = append(dst, m)
	}
	return dst
}

// site is a router in front of fake engines, over real sockets.
type site struct {
	t       testing.TB
	engines []*fakeEngine
	index   *fakeIndex
	fleet   *fleet.Fleet
	router  *Router
	server  *httptest.Server
	client  *http.Client
}

type option func(*siteOptions)

type siteOptions struct {
	config  Config
	roles   []fleet.Role
	store   *fakeStore
	stores  Stores
	noIndex bool
	watch   fleet.Options
}

func newSite(t testing.TB, n int, options ...option) *site {
	t.Helper()
	o := siteOptions{watch: fleet.Options{PollEvery: 20 * time.Millisecond, GiveUpAfter: time.Hour}}
	// A busy machine is no reason to route by load.
	o.config.TokenizeTimeout, o.config.HandoverTimeout = time.Minute, time.Minute
	for _, option := range options {
		option(&o)
	}
	s := &site{t: t}
	var list []fleet.Engine
	for i := range n {
		e := newFakeEngine(t, string(rune('a'+i)))
		e.mu.stored = o.store
		s.engines = append(s.engines, e)
		one := fleet.Engine{Name: e.name, URL: e.server.URL}
		if o.roles != nil {
			one.Role = o.roles[i]
		}
		list = append(list, one)
	}
	log := slog.New(slog.DiscardHandler)
	transport := NewTransport()
	polls := NewTransport()
	var err error
	if s.fleet, err = fleet.New(list, o.watch, polls, log); err != nil {
		t.Fatal(err)
	}
	var index Index
	if !o.noIndex {
		s.index = &fakeIndex{engines: s.engines, store: o.store}
		index = s.index
	}
	if s.router, err = New(o.config, index, s.fleet, o.stores, transport, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.fleet.Run(ctx) })
	running.Go(func() { _ = s.router.Run(ctx) })
	s.server = httptest.NewServer(s.router)
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.server.CloseClientConnections()
		s.server.Close()
		cancel()
		running.Wait()
		transport.CloseIdleConnections()
		polls.CloseIdleConnections()
	})
	s.until("all engines are in use", func() bool { return s.fleet.Usable() == n && len(s.fleet.Models()) > 0 })
	return s
}

// until waits for something that will be.
func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			s.t.Fatalf("it is not so, after a minute, that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading it
}

func (r *reply) engine() string { return r.header.Get(headerEngine) }

func (s *site) post(path, content string, headers ...string) *reply {
	return s.ask(http.MethodPost, path, content, headers...)
}

func (s *site) ask(method, path, content string, headers ...string) *reply {
	s.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, s.server.URL+path, strings.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := s.client.Do(request)
	if err != nil {
		return &reply{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return &reply{response.StatusCode, response.Header, string(text), err}
}

// decision returns the latest one.
func (s *site) decision() Decision {
	s.t.Helper()
	all := s.router.decisions.latest(1, func(*Decision) bool { return true })
	if len(all) == 0 {
		s.t.Fatal("nothing was decided")
	}
	return all[0]
}

// idle waits until nothing is counted as in flight.
func (s *site) idle() {
	s.t.Helper()
	s.until("nothing is in flight", func() bool {
		for _, v := range s.fleet.Views() {
			for _, r := range v.Ranks {
				if r.OurRequests != 0 || r.OurPrompts != 0 || r.ContextTokens != 0 {
					return false
				}
			}
		}
		return s.router.Stats().InFlight == 0
	})
}

func completion(prompt string, more ...string) string {
	quoted, _ := json.Marshal(prompt)
	return fmt.Sprintf(`{"model":"m","prompt":%s%s}`, quoted, strings.Join(append([]string{""}, more...), ","))
}

func long(seed string, tokens int) string { return strings.Repeat(seed, tokens/len(seed)+1)[:tokens] }

func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q has nothing of %q", text, part)
		}
	}
}

// newSiteOfTwoModels is a site whose second engine serves the model other alone.
func newSiteOfTwoModels(t *testing.T) *site {
	t.Helper()
	s := newSite(t, 2)
	e := s.engines[1]
	e.mu.Lock()
	e.mu.models = `{"id":"other"}`
	e.mu.Unlock()
	e.kill()
	s.until("b is out", func() bool { return s.fleet.Usable() == 1 })
	e.start(t)
	s.until("b serves the other model", func() bool { _, ok := s.fleet.Model("other"); return ok })
	return s
}
