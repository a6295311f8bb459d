package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTokensAreAskedForOnce: equal prompts share a question and its answer.
func TestTokensAreAskedForOnce(t *testing.T) {
	s := newSite(t, 1)
	e := s.engines[0]
	hold := make(chan struct{})
	e.mu.Lock()
	e.mu.hold = hold
	e.mu.Unlock()
	var clients sync.WaitGroup
	for range 5 {
		clients.Go(func() { s.post(pathCompletions, completion("the same")) })
	}
	s.until("all wait", func() bool { c, _ := s.router.tokenizer.cache.counts(); return c.Asked == 1 && c.Joined == 4 })
	close(hold)
	clients.Wait()
	s.post(pathCompletions, completion("the same"))
	s.post(pathCompletions, completion("another"))
	if n := e.asked("/tokenize"); n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
	stats := s.router.Stats()
	if stats.TokenHits != 1 || stats.TokensAsked != 2 || stats.TokensJoined != 4 || stats.TokenBytes <= 0 {
		t.Errorf("%+v", stats)
	}
}

// TestTokensAreNotWaitedForLong: without them the request goes by load, and the answer is
// there for the next.
func TestTokensAreNotWaitedForLong(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.TokenizeTimeout = 20 * time.Millisecond })
	e := s.engines[0]
	hold := make(chan struct{})
	e.mu.Lock()
	e.mu.hold = hold
	e.mu.Unlock()
	done := make(chan *reply, 1)
	go func() { done <- s.post(pathCompletions, completion("x")) }()
	s.until("the request went on without", func() bool { return e.asked(pathCompletions) == 1 })
	close(hold)
	if got := <-done; got.status != http.StatusOK || got.header.Get(headerCached) != "" {
		t.Errorf("%+v", got)
	}
	if d := s.decision(); d.Known || d.Unknown == "" {
		t.Errorf("%+v", d)
	}
	s.until("the answer has come all the same", func() bool { return s.router.Stats().TokenBytes > 0 })
	s.until("the next has them", func() bool { return s.post(pathCompletions, completion("x")).header.Get(headerCached) != "" })
	if n := e.asked("/tokenize"); n != 1 {
		t.Errorf("%d questions, want 1", n)
	}
}

// TestTokenCacheIsBounded: by bytes, the oldest first; what fails is not remembered.
func TestTokenCacheIsBounded(t *testing.T) {
	c := newTokenCache(10 * (entryBytes + 40))
	get := func(n int, fault error) ([]byte, error) {
		return c.get(context.Background(), tokenKey{byte(n)}, func(answer func([]byte, error)) { answer(bytes.Repeat([]byte{byte(n)}, 40), fault) })
	}
	for n := range 30 {
		if ids, err := get(n, nil); err != nil || len(ids) != 40 || ids[0] != byte(n) {
			t.Fatalf("%v, %v", ids, err)
		}
		_, _ = get(0, nil) // is in use
	}
	counts, held := c.counts()
	if held != c.maxBytes || len(c.mu.entries) != 10 || counts.Asked != 30 {
		t.Errorf("%d bytes in %d entries, %+v", held, len(c.mu.entries), counts)
	}
	_, _ = get(0, nil)
	if again, _ := c.counts(); again.Asked != 30 {
		t.Error("what is in use was forgotten")
	}
	boom := errors.New("boom")
	if _, err := get(99, boom); !errors.Is(err, boom) {
		t.Error(err)
	}
	if _, err := get(99, nil); err != nil {
		t.Errorf("a fault was remembered: %v", err)
	}
	small := newTokenCache(10)
	if _, err := small.get(context.Background(), tokenKey{}, func(answer func([]byte, error)) { answer(make([]byte, 100), nil) }); err != nil || len(small.mu.entries) != 0 {
		t.Errorf("%v, %d entries", err, len(small.mu.entries))
	}
}

// TestQuestions: what /tokenize is asked is what the engine would make of the request.
func TestQuestions(t *testing.T) {
	for name, c := range map[string]struct {
		path, body, want string
	}{
		"text":             {pathCompletions, `{"model":"m","prompt":"p","max_tokens":5}`, `{"model":"m","prompt":"p"}`},
		"special":          {pathCompletions, `{"prompt":"p","add_special_tokens":false}`, `{"prompt":"p","add_special_tokens":false}`},
		"truncated":        {pathCompletions, `{"prompt":"p","truncate_prompt_tokens":5}`, `{"prompt":"p"}`},
		"several":          {pathCompletions, `{"prompt":["p","q"]}`, ``},
		"suffix":           {pathCompletions, `{"prompt":"p","suffix":"s"}`, ``},
		"chat":             {pathChat, `{"messages":[1],"tools":[2],"stream":true,"n":1}`, `{"messages":[1],"tools":[2]}`},
		"open end":         {pathChat, `{"messages":[1],"continue_final_message":true,"add_generation_prompt":false}`, `{"messages":[1],"add_generation_prompt":false,"continue_final_message":true}`},
		"effort":           {pathChat, `{"messages":[1],"reasoning_effort":"low"}`, `{"messages":[1],"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}}`},
		"no thinking":      {pathChat, `{"messages":[1],"reasoning_effort":"none"}`, `{"messages":[1],"chat_template_kwargs":{"reasoning_effort":"none","enable_thinking":false}}`},
		"both":             {pathChat, `{"messages":[1],"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false,"x":1}}`, `{"messages":[1],"chat_template_kwargs":{"enable_thinking":false,"x":1,"reasoning_effort":"low"}}`},
		"documents":        {pathChat, `{"messages":[1],"documents":[3],"chat_template":"t"}`, `{"messages":[1],"chat_template":"t","chat_template_kwargs":{"documents":[3]}}`},
		"null":             {pathChat, `{"messages":[1],"documents":null,"tools":null}`, `{"messages":[1]}`},
		"nothing":          {pathChat, `{"model":"m"}`, ``},
		"another path":     {"/v1/messages", `{"messages":[1]}`, ``},
		"kwargs of no use": {pathChat, `{"messages":[1],"chat_template_kwargs":[]}`, ``},
		"thoughts":         {pathChat, `{"messages":[{"role":"user"}, {"reasoning_content":"r","content":"c"}]}`, `{"messages":[{"role":"user"},{"content":"c","reasoning":"r"}]}`},
		"thoughts twice":   {pathChat, `{"messages":[{"reasoning_content":"r","reasoning":"s"},{"reasoning":null,"reasoning_content":"r"}]}`, `{"messages":[{"reasoning":"s"},{"reasoning":"r"}]}`},
		"no thoughts":      {pathChat, `{"messages":[{"reasoning_content":null,"content":"c"},{"content":"reasoning_content"},1]}`, `{"messages":[{"content":"c"},{"content":"reasoning_content"},1]}`},
		"odd thoughts":     {pathChat, `{"messages":{"reasoning_content":"r"}}`, `{"messages":{"reasoning_content":"r"}}`},
		"twice":            {pathChat, `{"messages":[{"reasoning_content":1,"reasoning_content":2}]}`, `{"messages":[{"reasoning_content":1,"reasoning_content":2}]}`},
	} {
		b, err := parseBody([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := questionOf(c.path, b)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

// TestTokensInPlaceOfPrompts: where it means the same, and only there.
func TestTokensInPlaceOfPrompts(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.SendTokens = true })
	for _, c := range []struct {
		path, content string
		sent          bool
	}{
		{pathCompletions, completion("abc", `"stream":false`), true},
		{pathCompletions, completion("abc", `"echo":true`), false},
		{pathCompletions, completion("abc", `"truncate_prompt_tokens":2`), false},
		{pathCompletions, `{"model":"m","prompt":["abc","d"]}`, false},
		{pathCompletions, `{"model":"m","prompt":[97,98,99]}`, false},
		{pathChat, `{"model":"m","messages":[{"role":"user","content":"abc"}]}`, false},
	} {
		if got := s.post(c.path, c.content); got.status != http.StatusOK {
			t.Fatalf("%+v", got)
		}
		requests := s.engines[0].requests()
		last := requests[len(requests)-1]
		if changed := last.raw != c.content; changed != c.sent {
			t.Errorf("%s became %s", c.content, last.raw)
		}
		if c.sent && string(last.body["prompt"]) != "[97,98,99]" {
			t.Errorf("%s", last.raw)
		}
	}
}

// TestHistory: an engine is remembered for the prefixes that it was sent, for a time.
func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(1)
		now := time.Unix(0, 0)
		sent := map[int][]byte{} // by engine, the latest
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			engine := rapid.IntRange(0, 3).Draw(t, "engine")
			tokens := bytes.Repeat([]byte{byte(rapid.IntRange(0, 2).Draw(t, "text"))}, rapid.IntRange(0, 5*historyTokens*tokenBytes).Draw(t, "bytes"))
			if len(tokens) > 700 && rapid.Bool().Draw(t, "differs later") {
				tokens[700] = 9
			}
			now = now.Add(time.Second)
			h.sent(prefixHashes(1, "s", tokens, nil), targetOf(engine), now)
			sent[engine] = tokens
			asked := tokens
			for _, m := range h.matches(prefixHashes(1, "s", asked, nil), now) {
				if m.tokens*tokenBytes > len(asked) {
					t.Fatalf("%d tokens of %d", m.tokens, len(asked)/tokenBytes)
				}
				if _, ok := sent[m.to.Engine]; !ok || m.since.After(now) {
					t.Fatalf("%+v was never sent", m)
				}
			}
			if want := sent[engine]; bytes.Equal(want, asked) {
				got := 0
				for _, m := range h.matches(prefixHashes(1, "s", asked, nil), now) {
					if m.to == targetOf(engine) {
						got = m.tokens
					}
				}
				if got != len(asked)/tokenBytes/historyTokens*historyTokens {
					t.Fatalf("%d tokens of %d that were just sent", got, len(asked)/tokenBytes)
				}
			}
		}
		if late := h.matches(prefixHashes(1, "s", sent[0], nil), now.Add(2*time.Hour)); len(late) != 0 {
			t.Fatalf("%+v after its time", late)
		}
	})
}

// TestHistoryIsBounded: the oldest prefixes are forgotten.
func TestHistoryIsBounded(t *testing.T) {
	h := newHistory(1)
	now := time.Unix(100, 0)
	for i := range 2 * maxHistory {
		h.sent([]uint64{uint64(i) + 1}, targetOf(0), now)
	}
	if n := len(h.places); n != maxHistory {
		t.Errorf("%d are remembered, want %d", n, maxHistory)
	}
	if len(h.matches([]uint64{1}, time.Unix(0, 0))) != 0 || len(h.matches([]uint64{2 * maxHistory}, time.Unix(0, 0))) != 1 {
		t.Error("not the oldest were forgotten")
	}
}

// TestGate: places go to the most urgent, then to who came first; nobody who left has
// one.
func TestGate(t *testing.T) {
	g := gate{places: 1, most: 3}
	if err := g.enter(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	type one struct {
		name string
		err  error
	}
	answers := make(chan one)
	var all sync.WaitGroup
	wait := func(ctx context.Context, name string, priority, waiting int) {
		all.Go(func() {
			err := g.enter(ctx, priority)
			answers <- one{name, err}
		})
		for _, n := g.load(); n != waiting; _, n = g.load() {
			time.Sleep(time.Millisecond)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	wait(t.Context(), "late", 5, 1)
	wait(ctx, "leaves", 0, 2)
	wait(t.Context(), "first", 1, 3)
	all.Go(func() { answers <- one{"second", g.enter(t.Context(), 1)} })
	if a := <-answers; a.name != "late" || !errors.Is(a.err, errFull) {
		t.Errorf("%+v, want the least urgent turned away", a)
	}
	leave()
	if a := <-answers; a.name != "leaves" || !errors.Is(a.err, context.Canceled) {
		t.Errorf("%+v", a)
	}
	for _, want := range []string{"first", "second"} {
		g.leave()
		if a := <-answers; a.name != want || a.err != nil {
			t.Errorf("%+v, want %s", a, want)
		}
	}
	g.leave()
	if taken, waiting := g.load(); taken != 0 || waiting != 0 {
		t.Errorf("%d taken, %d wait", taken, waiting)
	}
	all.Wait()
}

// TestGateUnderLoad: never more than there are places, and all come through.
func TestGateUnderLoad(t *testing.T) {
	g := gate{places: 3, most: 1000}
	var mu sync.Mutex
	inside, most := 0, 0
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx := t.Context()
			if i%5 == 0 {
				limited, cancel := context.WithTimeout(ctx, time.Duration(i)*10*time.Microsecond)
				defer cancel()
				ctx = limited
			}
			if g.enter(ctx, i%4) != nil {
				return
			}
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			time.Sleep(100 * time.Microsecond)
			mu.Lock()
			inside--
			mu.Unlock()
			g.leave()
		})
	}
	all.Wait()
	if taken, waiting := g.load(); taken != 0 || waiting != 0 || most > 3 || most == 0 {
		t.Errorf("%d taken, %d wait, %d at most inside", taken, waiting, most)
	}
}

func TestConfig(t *testing.T) {
	var c Config
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	bad := c
	bad.Policy, bad.TTFT, bad.TokenBytes, bad.ContextTTL, bad.Scheduler.Threshold, bad.Replication.Uses = "best", -1, -5, 100*24*time.Hour, 0, -1
	err := bad.Validate()
	for _, want := range []string{`"best"`, "ttft", "token ids", "contexts are kept", "threshold", "replication"} {
		mustContain(t, fmt.Sprint(err), want)
	}
	if !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}
