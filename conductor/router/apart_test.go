package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

func apart(o *siteOptions) {
	o.roles, o.store = []fleet.Role{fleet.Prefill, fleet.Decode, fleet.Decode}, &fakeStore{}
	o.config.Pooled = true
}

// TestPrefillAndDecodeApart: a prefill engine computes each prompt, a decode engine at
// most what is no whole block, without anybody sleeping: the router waits until the index
// says that all is stored.
func TestPrefillAndDecodeApart(t *testing.T) {
	s := newSite(t, 3, apart)
	for i := range 20 {
		s.index.is(5) // the store's events come late
		content := completion(long(fmt.Sprint("prompt ", i, " "), 200+13*i), `"stream":true`, `"cache_salt":"s"`, `"max_tokens":3`)
		path := pathCompletions
		if i%2 == 1 {
			path = pathChat
			content = fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, long(fmt.Sprint("chat ", i), 300))
		}
		got := s.post(path, content)
		if got.status != http.StatusOK || got.err != nil || got.engine() == "a" {
			t.Fatalf("%+v", got)
		}
	}
	s.idle()
	if n := len(s.engines[0].requests()); n != 20 {
		t.Errorf("the prefill engine saw %d requests, want 20", n)
	}
	for _, r := range s.engines[0].requests() {
		if string(r.body["max_tokens"]) != "1" || r.path != pathCompletions || r.body["stream"] != nil {
			t.Errorf("%s", r.raw)
		}
	}
	decoded := 0
	for _, e := range s.engines[1:] {
		decoded += len(e.requests())
		for _, r := range e.requests() {
			if r.computed > blockTokens {
				t.Errorf("%s computed %d tokens of %d", e.name, r.computed, len(r.tokens)/4)
			}
		}
	}
	if decoded != 20 {
		t.Errorf("%d requests were decoded", decoded)
	}
	if stats := s.router.Stats(); stats.HandoversLate != 0 {
		t.Errorf("%+v", stats)
	}
	d := s.decision()
	if d.Prefill != "a" || d.Decode == "a" || d.Decode == "" || !strings.HasPrefix(d.Note, "stored; it was waited for ") {
		t.Errorf("%+v", d)
	}
}

// TestHandoverToAnUnknownEngine: of engines whose own events are not followed, what all
// can load is what the index says of any other.
func TestHandoverToAnUnknownEngine(t *testing.T) {
	s := newSite(t, 3, apart)
	for i := range 5 {
		s.index.is(5, "b", "c")
		s.router.placer.catalog.known.Store(nil)
		if got := s.post(pathCompletions, completion(long(fmt.Sprint(i, " prompt"), 300))); got.status != http.StatusOK || got.engine() == "a" {
			t.Fatalf("%+v", got)
		}
	}
	for _, e := range s.engines[1:] {
		for _, r := range e.requests() {
			if r.computed > blockTokens {
				t.Errorf("%s computed %d tokens of %d", e.name, r.computed, len(r.tokens)/4)
			}
		}
	}
}

// TestLateHandovers: a request does not wait for ever for what is not stored, nor for
// what nobody would tell; which it was can be read.
func TestLateHandovers(t *testing.T) {
	s := newSite(t, 3, apart, func(o *siteOptions) { o.config.HandoverTimeout = time.Millisecond })
	s.index.is(1 << 30)
	if got := s.post(pathCompletions, completion(long("x", 300))); got.status != http.StatusOK || got.engine() == "a" || s.router.Stats().HandoversLate != 1 {
		t.Errorf("%+v, %+v", got, s.router.Stats())
	}
	mustContain(t, s.decision().Note, "not known to be stored")
	blind := newSite(t, 3, apart, func(o *siteOptions) { o.store = nil })
	if got := blind.post(pathCompletions, completion(long("x", 300))); got.status != http.StatusOK || blind.router.Stats().HandoversLate != 0 {
		t.Errorf("%+v, %+v", got, blind.router.Stats())
	}
	mustContain(t, blind.decision().Note, "not waited for")
}

// TestWishesGoWithThePrefill: the engine that stores hears what is to be stored, and a
// prompt that is not to be stored is not computed elsewhere.
func TestWishesGoWithThePrefill(t *testing.T) {
	s := newSite(t, 3, apart)
	wish := `{"max_offload_tokens":64,"mooncake_sidecar":{"ttl_s":60,"pin":"soft"}}`
	s.post(pathCompletions, completion(long("x", 300), `"kv_transfer_params":`+wish))
	if r := s.engines[0].requests(); len(r) != 1 || string(r[0].body[transferParams]) != wish {
		t.Errorf("%+v", r)
	}
	if got := s.post(pathCompletions, completion(long("y", 300), `"kv_transfer_params":{"skip_save":true}`)); got.status != http.StatusOK || len(s.engines[0].requests()) != 1 {
		t.Errorf("%+v", got)
	}
	mustContain(t, s.decision().Note, "nothing is to be stored")
	for wish, want := range map[string]int{`{}`: math.MaxInt, `null`: math.MaxInt, `[]`: math.MaxInt, `{"max_offload_tokens":64}`: 64, `{"max_offload_tokens":-1}`: math.MaxInt, `{"skip_save":true}`: 0, `{"skip_save":false}`: math.MaxInt} {
		b, err := parseBody([]byte(`{"kv_transfer_params":` + wish + `}`))
		if err != nil || storedAtMost(b) != want {
			t.Errorf("%s: %d, %v", wish, storedAtMost(b), err)
		}
	}
}

// TestHungPrefill: a prefill engine that says nothing is left, too.
func TestHungPrefill(t *testing.T) {
	s := newSite(t, 3, func(o *siteOptions) {
		o.roles, o.store = []fleet.Role{fleet.Prefill, fleet.Prefill, fleet.Decode}, &fakeStore{}
		o.config.Policy = RoundRobin
	})
	s.engines[0].do(hangs)
	s.router.after = firstIsOver()
	if got := s.post(pathCompletions, completion(long("x", 100))); got.status != http.StatusOK || got.engine() != "c" {
		t.Errorf("%+v", got)
	}
	if d := s.decision(); len(d.Attempts) != 1 || d.Attempts[0].Engine != "a" || d.Prefill != "b" {
		t.Errorf("%+v", d)
	}
	s.idle()
}

// TestNoDecodeEngineIsLeft: that is no fault of the request's objectives.
func TestNoDecodeEngineIsLeft(t *testing.T) {
	s := newSite(t, 1)
	q := &request{path: pathCompletions, model: "m", base: "m"}
	q.describe(pathCompletions, &body{})
	out, none := s.router.placer.place(t.Context(), q, choice{})
	if none != somebody {
		t.Fatal(none)
	}
	if ok, _, none := s.router.placer.redecide(t.Context(), q, &out, []int{0}); ok || none != noneInUse {
		t.Errorf("%v, %v", ok, none)
	}
	s.idle()
}

// TestWhoseStores: a store of rank -1 is its instance's, any other one is of all
// instances of its tenant and model.
func TestWhoseStores(t *testing.T) {
	of := func(s contract.Service) *services {
		known := &services{forms: map[modelName][]form{}, follows: map[string]bool{}, stores: map[string]bool{}, shared: map[modelName]bool{}}
		known.add(&contract.Status{Service: s})
		return known
	}
	q := &request{base: "m"}
	q.tenant = "default"
	for name, c := range map[string]struct {
		service         contract.Service
		told, everybody bool
	}{
		"its own":          {contract.Service{Type: contract.TypeMooncake, Tenant: "default", Model: "m", Instance: "e", Rank: prefixindex.Shared}, true, false},
		"another's":        {contract.Service{Type: contract.TypeMooncake, Tenant: "default", Model: "m", Instance: "f", Rank: prefixindex.Shared}, false, false},
		"everybody's":      {contract.Service{Type: contract.TypeMooncake, Tenant: "default", Model: "m", Instance: "store"}, true, true},
		"another model's":  {contract.Service{Type: contract.TypeMooncake, Tenant: "default", Model: "n", Instance: "store"}, false, false},
		"another tenant's": {contract.Service{Type: contract.TypeMooncake, Tenant: "t", Model: "m", Instance: "store"}, false, false},
		"an engine":        {contract.Service{Type: contract.TypeVLLM, Tenant: "default", Model: "m", Instance: "e"}, false, false},
	} {
		known := of(c.service)
		if told, everybody := known.tells(q, "e"); told != c.told || everybody != c.everybody {
			t.Errorf("%s: %v, %v", name, told, everybody)
		}
		if known.follows["e"] != (name == "an engine") {
			t.Errorf("%s: %v", name, known.follows)
		}
	}
}

// TestThePrefillFails: another prefill engine is asked, or the decode engine does both.
func TestThePrefillFails(t *testing.T) {
	roles := func(o *siteOptions) {
		o.roles, o.store = []fleet.Role{fleet.Prefill, fleet.Prefill, fleet.Decode}, &fakeStore{}
		o.config.Policy = RoundRobin
	}
	s := newSite(t, 3, roles)
	s.engines[0].do(broken)
	if got := s.post(pathCompletions, completion(long("x", 100))); got.status != http.StatusOK || got.engine() != "c" {
		t.Errorf("%+v", got)
	}
	if a, b := len(s.engines[0].requests()), len(s.engines[1].requests()); a != 1 || b != 1 {
		t.Errorf("a was asked %d times, b %d times", a, b)
	}
	if d := s.decision(); len(d.Attempts) != 1 || d.Attempts[0].Engine != "a" || d.Prefill != "b" {
		t.Errorf("%+v", d)
	}
	// What is wrong with a request its client hears from the engine that answers.
	s.engines[0].do(refusesRequests)
	s.engines[1].do(refusesRequests)
	if got := s.post(pathCompletions, completion(long("y", 100))); got.status != http.StatusOK || got.engine() != "c" || s.decision().Note == "" {
		t.Errorf("%+v, %+v", got, s.decision())
	}
	for _, e := range s.engines[:2] {
		e.kill()
	}
	s.until("the prefill engines are out", func() bool { return s.fleet.Usable() == 1 })
	if got := s.post(pathCompletions, completion(long("z", 100))); got.status != http.StatusOK || got.engine() != "c" {
		t.Errorf("%+v", got)
	}
	s.idle()
}

// TestImagesAreNotPrefilledElsewhere: token ids are not all of such a request.
func TestImagesAreNotPrefilledElsewhere(t *testing.T) {
	s := newSite(t, 3, apart)
	got := s.post(pathChat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`)
	if got.status != http.StatusOK || len(s.engines[0].requests()) != 0 {
		t.Errorf("%+v", got)
	}
	mustContain(t, s.decision().Note, "not known")
}

// TestTheSecondCheck: who would decode too slowly when the prefill is done is refused
// then.
func TestTheSecondCheck(t *testing.T) {
	s := newSite(t, 3, apart, func(o *siteOptions) {
		o.config.Scheduler = DefaultScheduler()
		o.config.Scheduler.Admission = scheduler.AdmitBaseline // it looks at arrival at nothing
	})
	got := s.post(pathCompletions, completion(long("x", 100)), headerTBT, "1us")
	if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("%+v", got)
	}
	mustContain(t, got.body, "decode-busy")
	if p, d := len(s.engines[0].requests()), len(s.engines[1].requests())+len(s.engines[2].requests()); p != 1 || d != 0 {
		t.Errorf("%d prefills and %d decodes", p, d)
	}
	if d := s.decision(); d.Refused != "decode-busy" || d.Status != http.StatusTooManyRequests {
		t.Errorf("%+v", d)
	}
	s.idle()
}

// fakeStores remembers what it was told.
type fakeStores struct {
	mu     sync.Mutex
	told   []string
	prefix map[string]*Prefix
	none   bool
}

func (f *fakeStores) tell(what, instance string, p *Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.none {
		return ErrNoStore
	}
	f.told = append(f.told, what+" "+instance)
	if f.prefix == nil {
		f.prefix = map[string]*Prefix{}
	}
	f.prefix[what+" "+instance] = p
	return nil
}

func (f *fakeStores) has(what string) *Prefix {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prefix[what]
}

// Pin implements Stores.
func (f *fakeStores) Pin(_ context.Context, instance string, p *Prefix, ttl func() time.Duration) (int, error) {
	return len(p.Tokens) / 4, f.tell(fmt.Sprint("pin ", ttl().Round(time.Minute)), instance, p)
}

// Unpin implements Stores.
func (f *fakeStores) Unpin(_ context.Context, instance string, p *Prefix, _ func() int) error {
	return f.tell("unpin", instance, p)
}

// Prefetch implements Stores.
func (f *fakeStores) Prefetch(_ context.Context, instance string, p *Prefix) error {
	return f.tell("prefetch", instance, p)
}

// TestContexts: a prefix that has a name is computed by the engines before anybody needs
// it, pinned, put before prompts, listed and deleted.
func TestContexts(t *testing.T) {
	stores := &fakeStores{}
	s := newSite(t, 2, func(o *siteOptions) { o.stores = stores })
	text := long("rules ", 800)
	create := fmt.Sprintf(`{"name":"rules","model":"m","ttl_seconds":60,"messages":[{"role":"system","content":%q}],"tools":[{"x":1}]}`, text)
	if got := s.post("/v1/contexts", create); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	s.until("both engines keep it", func() bool { return stores.has("pin 1m0s a") != nil && stores.has("pin 1m0s b") != nil })
	for _, e := range s.engines {
		r := e.requests()[0]
		if string(r.body["max_tokens"]) != "1" || !strings.Contains(r.raw, `"pin":"soft"`) || !regexp.MustCompile(`"ttl_s":(60|[1-5]\d)\b`).MatchString(r.raw) {
			t.Errorf("%.100s", r.raw)
		}
	}
	p := stores.has("pin 1m0s a")
	if p.Model != "m" || p.BlockTokens != blockTokens || len(p.Tokens) < 800*tokenBytes {
		t.Errorf("%+v", p)
	}
	got := s.post(pathChat, `{"model":"m","messages":[{"role":"user","content":"why?"}]}`, headerContext, "rules")
	var answer struct{ Tokens, Computed int }
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.status != http.StatusOK || answer.Tokens < 800 || answer.Computed > 50 {
		t.Errorf("%+v: %+v, %v", got, answer, err)
	}
	if got.header.Get(headerCached) < "8" {
		t.Errorf("%v", got.header)
	}
	for name, c := range map[string]struct {
		path, content string
		headers       []string
		status        int
	}{
		"the same again":         {"/v1/contexts", create, nil, http.StatusOK},
		"another of that name":   {"/v1/contexts", strings.Replace(create, "rules ", "rules! ", 1), nil, http.StatusConflict},
		"another tenant's":       {"/v1/contexts", strings.Replace(create, "rules ", "rules! ", 1), []string{headerTenant, "t"}, http.StatusOK},
		"no name":                {"/v1/contexts", `{"model":"m","prompt":"x"}`, nil, http.StatusBadRequest},
		"several prompts":        {"/v1/contexts", `{"model":"m","name":"x","prompt":["x","y"]}`, nil, http.StatusBadRequest},
		"no prompt":              {"/v1/contexts", `{"model":"m","name":"x"}`, nil, http.StatusBadRequest},
		"no time":                {"/v1/contexts", `{"model":"m","name":"x","prompt":"x","ttl_seconds":-1}`, nil, http.StatusBadRequest},
		"one that is not there":  {pathChat, `{"model":"m","messages":[]}`, []string{headerContext, "x"}, http.StatusBadRequest},
		"of another tenant":      {pathChat, `{"model":"m","messages":[]}`, []string{headerContext, "rules", headerTenant, "u"}, http.StatusBadRequest},
		"of another kind":        {pathCompletions, completion("x"), []string{headerContext, "rules"}, http.StatusBadRequest},
		"of another model":       {pathChat, `{"model":"adapter","messages":[]}`, []string{headerContext, "rules"}, http.StatusBadRequest},
		"of another salt":        {pathChat, `{"model":"m","cache_salt":"x","messages":[]}`, []string{headerContext, "rules"}, http.StatusBadRequest},
		"to messages of no kind": {pathChat, `{"model":"m","messages":"x"}`, []string{headerContext, "rules"}, http.StatusBadRequest},
	} {
		if got := s.post(c.path, c.content, c.headers...); got.status != c.status {
			t.Errorf("%s: %+v, want %d", name, got, c.status)
		}
	}
	// For longer: it is pinned for as long at once.
	if got := s.post("/v1/contexts", strings.Replace(create, `"ttl_seconds":60`, `"ttl_seconds":7200`, 1)); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
	s.until("both engines keep it for longer", func() bool { return stores.has("pin 2h0m0s a") != nil && stores.has("pin 2h0m0s b") != nil })
	s.until("it is known", func() bool {
		return strings.Count(s.ask(http.MethodGet, "/v1/contexts/rules", "").body, "pinned_tokens") == 2
	})
	list := s.ask(http.MethodGet, "/v1/contexts", "")
	mustContain(t, list.body, `"name":"rules"`, `"uses":1`, `"ttl_seconds":7200`, `"kept":{"a":{"pinned_tokens":`)
	mustContain(t, s.ask(http.MethodGet, "/v1/contexts/rules", "").body, `"model":"m"`)
	if got := s.ask(http.MethodDelete, "/v1/contexts/rules", ""); got.status != http.StatusOK || stores.has("unpin a") == nil || stores.has("unpin b") == nil {
		t.Errorf("%+v", got)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if got := s.ask(method, "/v1/contexts/rules", ""); got.status != http.StatusNotFound {
			t.Errorf("%s: %+v", method, got)
		}
	}
}

// TestContextsEnd: by themselves, unless somebody uses them; and there are no more than
// so many.
func TestContextsEnd(t *testing.T) {
	config := &Config{Contexts: 2}
	c := contexts{config: config, all: map[contextName]*promptContext{}}
	now := time.Unix(0, 0)
	add := func(name string, ttl time.Duration) error {
		b, err := parseBody([]byte(`{"model":"m","prompt":"` + name + ` "}`))
		if err != nil {
			t.Fatal(err)
		}
		q := &request{}
		q.describe(pathCompletions, b)
		_, err = c.add(&promptContext{name: name, tenant: "default", request: q, body: b, ttl: ttl}, now)
		return err
	}
	if err := errors.Join(add("a", time.Minute), add("b", time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := add("c", time.Minute); !errors.Is(err, errMany) {
		t.Error(err)
	}
	now = now.Add(50 * time.Second)
	b, _ := parseBody([]byte(completion("why?")))
	p, err := c.find(pathCompletions, b, "default", "a", now)
	if err != nil {
		t.Fatal(err)
	}
	expanded, err := p.before(b)
	if err != nil || expanded.text("prompt") != "a why?" {
		t.Errorf("%v, %v", expanded, err)
	}
	c.used(p, now)
	now = now.Add(50 * time.Second)
	if err := add("c", time.Minute); err != nil {
		t.Errorf("%v, though b's time is over", err)
	}
	if live := c.live("", now); len(live) != 2 || live[0].name != "a" || live[1].name != "c" {
		t.Errorf("%+v", live)
	}
	if live := c.live("other", now); len(live) != 0 {
		t.Errorf("%+v", live)
	}
}

// TestJoin: lists and texts, whatever is between their characters.
func TestJoin(t *testing.T) {
	for _, c := range [][3]string{
		{`[1, 2 ]`, `[ 3]`, `[1, 2,3]`}, {`[]`, `[3]`, `[3]`}, {`[1]`, `[ ]`, `[1]`}, {`"a\""`, `"b"`, `"a\"b"`}, {`""`, `""`, `""`},
		{`[1]`, `"b"`, ``}, {`{}`, `{}`, ``}, {``, ``, ``}, {`1`, `1`, ``},
	} {
		got, err := join([]byte(c[0]), []byte(c[1]))
		if string(got) != c[2] || (err == nil) != (c[2] != "") {
			t.Errorf("%s and %s are %s, %v", c[0], c[1], got, err)
		}
	}
}

// TestHotPrefixesAreCopied: what many ask for is had in one more place, by the store if
// it can, else by the engine.
func TestHotPrefixesAreCopied(t *testing.T) {
	for name, stores := range map[string]*fakeStores{"store": {}, "engine": {none: true}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2, func(o *siteOptions) {
				o.stores = stores
				o.config.Replication = scheduler.ReplicationOptions{Uses: 3, HalfLife: time.Hour, MinBlocks: historyTokens}
			})
			text := long("shared ", 1024)
			first := s.post(pathCompletions, completion(text)).engine()
			other := map[string]string{"a": "b", "b": "a"}[first]
			for i := range 6 {
				s.post(pathCompletions, completion(text+fmt.Sprint(i)))
			}
			s.until("a copy was made", func() bool { return s.router.Stats().Copies == 1 })
			if name == "store" {
				p := stores.has("prefetch " + other)
				if p == nil || len(p.Tokens) != 1024*tokenBytes || stores.has("pin 10m0s "+other) == nil {
					t.Errorf("%+v", stores.told)
				}
				return
			}
			copied := false
			for i := range s.engines {
				for _, r := range s.engines[i].requests() {
					copied = copied || s.engines[i].name == other && len(r.tokens) == 1024*tokenBytes && string(r.body["max_tokens"]) == "1"
				}
			}
			if !copied {
				t.Errorf("%s was not asked", other)
			}
		})
	}
}
