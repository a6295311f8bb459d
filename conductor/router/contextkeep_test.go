package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// pinningStores pin blocks as a store does: a pin takes an earlier one's place.
type pinningStores struct {
	mu sync.Mutex
	// pinned until when, by engine and prefix.
	pinned map[string]map[string]time.Time
	// kept are prefixes that must stay pinned, and lost what was done when one was not.
	kept []string
	lost []string
	// hangs is the engine whose store says nothing until free is closed; letting, if not nil, is told of each Unpin
	// that has begun, which then waits for go.
	hangs                 string
	letting, resume, free chan struct{}
	turns                 map[string]chan struct{}
	// pinning, if not nil, is what happens before the next Pin has its turn.
	pinning func()
}

func newPinningStores(engines ...string) *pinningStores {
	s := &pinningStores{free: make(chan struct{}), pinned: map[string]map[string]time.Time{}, turns: map[string]chan struct{}{}}
	for _, name := range engines {
		s.pinned[name], s.turns[name] = map[string]time.Time{}, make(chan struct{}, 1)
	}
	return s
}

// change has one call at a time change an engine's pins.
func (s *pinningStores) change(ctx context.Context, instance string, how func(map[string]time.Time)) error {
	s.mu.Lock()
	hangs := s.hangs == instance
	s.mu.Unlock()
	if hangs {
		select {
		case <-s.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case s.turns[instance] <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turns[instance] }()
	how(s.pinned[instance])
	return nil
}

// look notes what is not pinned that must be.
func (s *pinningStores) look(what, instance string) {
	for _, name := range s.kept {
		if _, ok := s.pinned[instance][name]; !ok {
			s.lost = append(s.lost, what+" at "+instance)
		}
	}
}

func (s *pinningStores) Pin(ctx context.Context, instance string, p *Prefix, ttl func() time.Duration) (tokens int, err error) {
	s.mu.Lock()
	happens := s.pinning
	s.pinning = nil
	s.mu.Unlock()
	if happens != nil {
		happens()
	}
	err = s.change(ctx, instance, func(pinned map[string]time.Time) {
		long := ttl()
		s.mu.Lock()
		defer s.mu.Unlock()
		prefixes(p.CacheSalt, p.Tokens, func(name string, n int) bool {
			if long > 0 {
				pinned[name], tokens = time.Now().Add(long), n
			}
			return true
		})
	})
	return tokens, err
}

func (s *pinningStores) Unpin(ctx context.Context, instance string, p *Prefix, keep func() int) error {
	return s.change(ctx, instance, func(pinned map[string]time.Time) {
		if s.letting != nil {
			s.letting <- struct{}{}
			<-s.resume
		}
		left := keep()
		s.mu.Lock()
		defer s.mu.Unlock()
		prefixes(p.CacheSalt, p.Tokens, func(name string, n int) bool {
			if n > left {
				delete(pinned, name)
			}
			return true
		})
		s.look("unpin", instance)
	})
}

func (s *pinningStores) Prefetch(context.Context, string, *Prefix) error { return ErrNoStore }

// blocks are how many of a text's whole blocks are pinned at an engine, and until when all are.
func (s *pinningStores) blocks(instance, text string) (n int, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefixes("", tokensOf(parse([]byte(completion(text)))), func(name string, _ int) bool {
		if at, ok := s.pinned[instance][name]; ok {
			if n++; n == 1 || at.Before(until) {
				until = at
			}
		}
		return true
	})
	return n, until
}

// keepFrom has the blocks of a text be pinned from now on.
func (s *pinningStores) keepFrom(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = nil
	prefixes("", tokensOf(parse([]byte(completion(text)))), func(name string, _ int) bool {
		s.kept = append(s.kept, name)
		return true
	})
}

func (s *pinningStores) losses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lost)
}

func (s *site) context(name, text string, seconds int) {
	s.t.Helper()
	if got := s.post("/v1/contexts", fmt.Sprintf(`{"name":%q,"model":"m","ttl_seconds":%d,"prompt":%q}`, name, seconds, text)); got.status != http.StatusOK {
		s.t.Fatalf("%+v", got)
	}
}

// TestWhatContextsShareStaysPinned: of contexts that begin alike one that is deleted takes the
// pins away that it has alone, and one that is kept for less shortens no other's.
func TestWhatContextsShareStaysPinned(t *testing.T) {
	stores := newPinningStores("a", "b")
	s := newSite(t, 2, func(o *siteOptions) { o.stores = stores })
	const block = blockTokens
	alike := long("alike ", 10*block)
	texts := map[string]string{"one": alike + long("one ", 5*block), "two": alike + long("two ", 3*block+5)}
	pinned := func(text string, blocks int) func() bool {
		return func() bool {
			a, _ := stores.blocks("a", text)
			b, _ := stores.blocks("b", text)
			return a == blocks && b == blocks
		}
	}
	s.context("one", texts["one"], 36000)
	s.until("one is pinned", pinned(texts["one"], 15))
	s.context("two", texts["two"], 600)
	s.until("two is pinned", pinned(texts["two"], 13))
	s.until("what is alike is pinned for the longer one again", func() bool {
		_, a := stores.blocks("a", alike)
		_, b := stores.blocks("b", alike)
		return min(time.Until(a), time.Until(b)) > 9*time.Hour
	})
	if _, until := stores.blocks("a", texts["two"]); time.Until(until) > 10*time.Minute {
		t.Errorf("what only the shorter one has is pinned until %v", until)
	}
	stores.keepFrom(texts["two"])
	if got := s.ask(http.MethodDelete, "/v1/contexts/one", ""); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	if !pinned(texts["one"], 10)() || !pinned(texts["two"], 13)() || len(stores.losses()) != 0 {
		t.Errorf("other blocks are pinned than those of the one that is left; %v", stores.losses())
	}
	if _, until := stores.blocks("b", alike); time.Until(until) > 10*time.Minute {
		t.Errorf("what is left is pinned until %v, as the one that is gone was", until)
	}
	// The same again, in one's own words: another salt has other blocks.
	if got := s.post("/v1/contexts", fmt.Sprintf(`{"name":"salted","model":"m","cache_salt":"s","prompt":%q}`, alike)); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	stores.keepFrom("")
	if got := s.ask(http.MethodDelete, "/v1/contexts/two", ""); got.status != http.StatusOK || !pinned(texts["two"], 0)() {
		t.Errorf("%+v, or something is pinned", got)
	}
}

// TestAContextThatComesWhileAnotherGoes: what a new one has in common with the one that is let
// go of at that moment is pinned from its pin on.
func TestAContextThatComesWhileAnotherGoes(t *testing.T) {
	stores := newPinningStores("a")
	s := newSite(t, 1, func(o *siteOptions) { o.stores = stores })
	text := long("alike ", 10*blockTokens)
	s.context("goes", text, 60)
	s.until("it is pinned", func() bool { n, _ := stores.blocks("a", text); return n == 10 })
	stores.mu.Lock()
	stores.letting, stores.resume = make(chan struct{}), make(chan struct{})
	stores.mu.Unlock()
	stores.keepFrom(text)
	deleted := make(chan *reply)
	go func() { deleted <- s.ask(http.MethodDelete, "/v1/contexts/goes", "") }()
	<-stores.letting
	s.context("comes", text, 60)
	s.until("its token ids are known", func() bool {
		live := s.router.contexts.live("", time.Now())
		return len(live) == 1 && s.router.contexts.asked(live[0]) != nil
	})
	close(stores.resume)
	if got := <-deleted; got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
	if n, _ := stores.blocks("a", text); n != 10 || len(stores.losses()) != 0 {
		t.Errorf("%d blocks are pinned; %v", n, stores.losses())
	}
}

// TestContextsThatGoTogether: what is pinned anew for those that have something in common with
// one that goes is not for one that goes itself before that has its turn.
func TestContextsThatGoTogether(t *testing.T) {
	for name, goes := range map[string]func(*site) (after func()){
		"let go of before": func(s *site) func() {
			if got := s.ask(http.MethodDelete, "/v1/contexts/also", ""); got.status != http.StatusOK {
				s.t.Errorf("%+v", got)
			}
			return func() {}
		},
		"let go of behind it": func(s *site) func() {
			p := s.router.contexts.remove(s.router.contexts.live("", time.Now())[0].tenant, "also")
			return func() { s.router.letGo(s.t.Context(), p, "a") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores := newPinningStores("a")
			s := newSite(t, 1, func(o *siteOptions) { o.stores = stores })
			text := long("alike ", 10*blockTokens)
			half := text[:5*blockTokens]
			for name, c := range map[string]struct {
				text    string
				blocks  int
				seconds int
			}{"goes": {text + long("own ", 2*blockTokens), 12, 36000}, "also": {text, 10, 3600}, "stays": {half, 5, 600}} {
				s.context(name, c.text, c.seconds)
				s.until(name+" is kept", func() bool {
					n, _ := stores.blocks("a", c.text)
					return n == c.blocks && strings.Contains(s.ask(http.MethodGet, "/v1/contexts/"+name, "").body, `"pinned_tokens"`)
				})
			}
			var after func()
			stores.mu.Lock()
			stores.pinning = func() { after = goes(s) }
			stores.mu.Unlock()
			if got := s.ask(http.MethodDelete, "/v1/contexts/goes", ""); got.status != http.StatusOK || after == nil {
				t.Fatalf("%+v", got)
			}
			if n, until := stores.blocks("a", half); n != 5 || time.Until(until) > 10*time.Minute || time.Until(until) < 5*time.Minute {
				t.Errorf("%d blocks of the one that stays are pinned until %v", n, until)
			}
			after()
			if n, _ := stores.blocks("a", text); n != 5 {
				t.Errorf("%d blocks are pinned, want those 5 of the one that stays", n)
			}
		})
	}
}

// TestAContextThatIsStoredLate: what an engine stores of a context that is gone by then does not
// stay pinned, whether the engine had answered when it went or not.
func TestAContextThatIsStoredLate(t *testing.T) {
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprint("answered ", answered), func(t *testing.T) {
			stores := newPinningStores("a")
			s := newSite(t, 1, func(o *siteOptions) { o.stores = stores })
			all, e := &s.router.contexts, s.engines[0]
			text := long("text ", 10*blockTokens)
			if answered {
				s.context("late", text, 36000)
				s.until("it is kept", func() bool {
					return strings.Contains(s.ask(http.MethodGet, "/v1/contexts/late", "").body, `"pinned_tokens":1`)
				})
			} else {
				e.do(hangs)
				s.context("late", text, 36000)
				s.until("the engine has it", func() bool { return len(e.requests()) == 1 })
			}
			if got := s.ask(http.MethodDelete, "/v1/contexts/late", ""); got.status != http.StatusOK {
				t.Fatalf("%+v", got)
			}
			if !answered {
				e.server.CloseClientConnections()
			}
			s.until("it is to be let go of once more", func() bool {
				all.mu.Lock()
				defer all.mu.Unlock()
				return len(all.leaving["a"]) == 1
			})
			// The engine's store job comes through, and a minute passes.
			p := &Prefix{Tokens: tokensOf(parse([]byte(completion(text))))}
			if _, err := stores.Pin(t.Context(), "a", p, func() time.Duration { return time.Hour }); err != nil {
				t.Fatal(err)
			}
			all.mu.Lock()
			all.leaving["a"][0].at = time.Now()
			all.mu.Unlock()
			s.router.wakeKeepers()
			s.until("nothing is pinned", func() bool { n, _ := stores.blocks("a", text); return n == 0 })
		})
	}
}

// TestLeaving: which contexts are let go of twice, and when.
func TestLeaving(t *testing.T) {
	began := time.Unix(1000, 0)
	all := contexts{config: &Config{Contexts: 2}, leaving: map[string][]leaving{}}
	gone := func(warmed, now time.Duration) (p, earlier *promptContext) {
		p = &promptContext{warmed: began.Add(warmed)}
		return p, all.leave(p, "e", began.Add(now))
	}
	if _, earlier := gone(0, keepsFor); earlier != nil || len(all.leaving["e"]) != 0 {
		t.Error("one is let go of again that was stored long ago")
	}
	first, _ := gone(0, 0)
	second, earlier := gone(0, time.Second)
	if earlier != nil {
		t.Error("there was room for two")
	}
	third, earlier := gone(time.Second, 2*time.Second)
	if earlier != first {
		t.Error("the first one did not make room")
	}
	for _, c := range []struct {
		engine string
		after  time.Duration
		want   []*promptContext
	}{{"e", keepsFor, nil}, {"other", time.Hour, nil}, {"e", keepsFor + time.Second, []*promptContext{second}}, {"e", time.Hour, []*promptContext{third}}, {"e", time.Hour, nil}} {
		if got := all.left(c.engine, began.Add(c.after)); !slices.Equal(got, c.want) {
			t.Errorf("%d of %s are left after %v, want %d", len(got), c.engine, c.after, len(c.want))
		}
	}
}

// TestAHungEngineHoldsUpNoOther: nor does a store that says nothing.
func TestAHungEngineHoldsUpNoOther(t *testing.T) {
	for name, hang := range map[string]func(*site, *pinningStores){
		"engine": func(s *site, _ *pinningStores) { s.engines[0].do(hangs) },
		"store":  func(_ *site, stores *pinningStores) { stores.hangs = "a" },
	} {
		t.Run(name, func(t *testing.T) {
			stores := newPinningStores("a", "b")
			s := newSite(t, 2, func(o *siteOptions) { o.stores = stores })
			hang(s, stores)
			text := long("text ", 10*blockTokens)
			for _, name := range []string{"first", "second"} {
				s.context(name, name+text, 60)
			}
			s.until("the other one keeps both", func() bool {
				return strings.Count(s.ask(http.MethodGet, "/v1/contexts", "").body, `"b":{"pinned_tokens":1`) == 2
			})
			deleted := make(chan *reply, 1)
			go func() { deleted <- s.ask(http.MethodDelete, "/v1/contexts/first", "") }()
			s.until("the other one has let go of it", func() bool { n, _ := stores.blocks("b", "first"+text); return n == 0 })
			close(stores.free)
			if got := <-deleted; got.status != http.StatusOK {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestSteps: whatever contexts share, pinning a prefix and its parts one after the other leaves
// each part pinned for the longest of those that have it.
func TestSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	for range 2000 {
		const tokens = 8
		own := random.IntN(10)
		var shared []share
		want := make([]int, tokens)
		for i := range want {
			want[i] = own
		}
		for range random.IntN(6) {
			n, until := 1+random.IntN(tokens), random.IntN(10)
			shared = append(shared, share{tokens: n, until: at(until)})
			for i := range n {
				want[i] = max(want[i], until)
			}
		}
		got := make([]int, tokens)
		for i := range got {
			got[i] = own
		}
		for _, s := range steps(slices.Clone(shared), at(own)) {
			for i := range s.tokens {
				got[i] = int(s.until.Unix())
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v until %d: %v, want %v", shared, own, got, want)
		}
	}
}

// TestDue: when an engine is asked for a context.
func TestDue(t *testing.T) {
	began := time.Unix(0, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	pinned := keeping{Tokens: 5, at: at(0), until: at(time.Hour)}
	for name, c := range map[string]struct {
		kept         *keeping
		since        time.Duration
		expires, now time.Duration
		gone, due    bool
	}{
		"at the start":                    {nil, 0, time.Hour, 0, false, true},
		"one that is gone":                {nil, 0, time.Hour, 0, true, false},
		"after a failure":                 {&keeping{Tokens: 5, Error: "no", at: at(0)}, 0, time.Hour, time.Second, false, true},
		"an engine that was restarted":    {&pinned, time.Second, time.Hour, 2 * time.Second, false, true},
		"pinned for as long as it lives":  {&pinned, -1, time.Hour, 59 * time.Minute, false, false},
		"used since, and pinned for long": {&pinned, -1, 80 * time.Minute, 20 * time.Minute, false, false},
		"used since, at half the time":    {&pinned, -1, 80 * time.Minute, 30 * time.Minute, false, true},
		"in a cache alone":                {&keeping{at: at(0), until: at(time.Hour)}, -1, time.Hour, time.Minute, false, false},
		"in a cache alone, later":         {&keeping{at: at(0), until: at(time.Hour)}, -1, time.Hour, warmEvery, false, true},
	} {
		p := &promptContext{expires: at(c.expires), gone: c.gone, kept: map[string]keeping{}}
		if c.kept != nil {
			p.kept["e"] = *c.kept
		}
		all := contexts{}
		if until, due := all.due(p, "e", at(c.since), at(c.now)); due != c.due || due && until != p.expires {
			t.Errorf("%s: %v, %v", name, until, due)
		}
	}
}

// TestCommon: how far two texts are equal.
func TestCommon(t *testing.T) {
	a := []byte(strings.Repeat("x", 20_000))
	for _, n := range []int{0, 1, 4095, 4096, 4097, 12_000, 19_999} {
		b := slices.Clone(a)
		b[n] = 'y'
		if got := common(a, b); got != n {
			t.Errorf("%d, want %d", got, n)
		}
		if got := common(a, a[:n]); got != n {
			t.Errorf("%d, want %d", got, n)
		}
	}
}

// TestContextsComeAndGo: many at a time, of engines that share a store: in the end what is
// pinned is what those have that are there, for as long as they are.
func TestContextsComeAndGo(t *testing.T) {
	stores := newPinningStores("a", "b")
	stores.pinned["b"], stores.turns["b"] = stores.pinned["a"], stores.turns["a"] // one node's
	s := newSite(t, 2, func(o *siteOptions) { o.stores = stores })
	var mu sync.Mutex
	there := map[string]string{}
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 5))
			for i := range 25 {
				name := fmt.Sprint(client, "-", i)
				text := ""
				for range 1 + random.IntN(5) {
					text += long(string(rune('x'+random.IntN(2))), 2*blockTokens)
				}
				s.context(name, text, 600+random.IntN(1000))
				mu.Lock()
				there[name] = text
				mu.Unlock()
				if random.IntN(3) == 0 {
					continue
				}
				mu.Lock()
				for gone := range there {
					if strings.HasPrefix(gone, fmt.Sprint(client, "-")) {
						name = gone
					}
				}
				delete(there, name)
				mu.Unlock()
				if got := s.ask(http.MethodDelete, "/v1/contexts/"+name, ""); got.status != http.StatusOK {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
	clients.Wait()
	if len(there) == 0 {
		t.Fatal("none is left")
	}
	s.router.wakeKeepers()
	s.until("what is pinned is what is there", func() bool {
		live := s.router.contexts.live("", time.Now())
		want := map[string]time.Time{}
		for _, p := range live {
			prefixes("", tokensOf(parse([]byte(completion(there[p.name])))), func(name string, _ int) bool {
				if p.expires.After(want[name]) {
					want[name] = p.expires
				}
				return true
			})
		}
		stores.mu.Lock()
		defer stores.mu.Unlock()
		if len(want) != len(stores.pinned["a"]) || len(live) != len(there) {
			return false
		}
		for name, until := range want {
			if at, ok := stores.pinned["a"][name]; !ok || at.Sub(until).Abs() > 5*time.Second {
				return false
			}
		}
		return true
	})
}
