package router

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// noted is what an observer was told.
type noted struct {
	mu      sync.Mutex
	sent    []time.Duration
	first   []time.Duration
	answers []string
}

func (n *noted) observer() Observer {
	note := func(to *[]time.Duration) func(time.Duration) {
		return func(took time.Duration) {
			n.mu.Lock()
			defer n.mu.Unlock()
			*to = append(*to, took)
		}
	}
	return Observer{Sent: note(&n.sent), FirstToken: note(&n.first), Answered: func(path string, status int) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.answers = append(n.answers, fmt.Sprint(path, " ", status))
	}}
}

// counts are how often each was told.
func (n *noted) counts() (sent, first int, answers []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sent), len(n.first), slices.Clone(n.answers)
}

// An observer hears of each answer once, by the path that was asked, and of times where
// there are such: of what was sent to an engine, and of streams.
func TestObserver(t *testing.T) {
	s := newSite(t, 2)
	n := &noted{}
	s.router.Observe(n.observer())
	for i, c := range []struct {
		method, path, content, answer string
		sent, first                   int
	}{
		{http.MethodPost, pathCompletions, completion("x"), pathCompletions + " 200", 1, 0},
		{http.MethodPost, pathCompletions, completion("x", `"stream":true`), pathCompletions + " 200", 1, 1},
		{http.MethodPost, pathChat, `{"model":"m","messages":[],"stream":true}`, pathChat + " 200", 1, 1},
		{http.MethodPost, pathCompletions, `{`, pathCompletions + " 400", 0, 0},
		{http.MethodPost, pathCompletions, `{"model":"none","prompt":"x"}`, pathCompletions + " 404", 0, 0},
		{http.MethodPost, "/v1/embeddings", `{"model":"m","input":"x"}`, "/v1/embeddings 200", 1, 0},
		{http.MethodGet, "/v1/models", "", "/v1/models 200", 0, 0},
		{http.MethodGet, "/v1/contexts/none", "", "/v1/contexts/{name} 404", 0, 0},
	} {
		sent, first, answers := n.counts()
		s.ask(c.method, c.path, c.content)
		s.until("the answer is over", func() bool { _, _, now := n.counts(); return len(now) == len(answers)+1 })
		sentNow, firstNow, now := n.counts()
		if got := now[len(now)-1]; got != c.answer || sentNow-sent != c.sent || firstNow-first != c.first {
			t.Errorf("request %d: %s, sent %d times, %d streams; want %+v", i, got, sentNow-sent, firstNow-first, c)
		}
	}
	// One that two engines are asked is sent once, and one that nobody has got has no status.
	s.engines[0].do(overloaded)
	s.engines[1].do(overloaded)
	sent, _, _ := n.counts()
	s.post(pathCompletions, completion("y"))
	s.until("it is over", func() bool { _, _, now := n.counts(); return slices.Contains(now, pathCompletions+" 503") })
	if now, _, _ := n.counts(); now != sent+1 {
		t.Errorf("sent %d times", now-sent)
	}
	stats := s.router.Stats()
	if stats.Unserved != 1 || stats.Nobody != 0 || stats.Retries != 2 {
		t.Errorf("%+v", stats)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, took := range append(n.sent, n.first...) {
		if took <= 0 {
			t.Errorf("it took %v", took)
		}
	}
}

// An answer that breaks off has the status of its beginning.
func TestObserverOfWhatBreaksOff(t *testing.T) {
	s := newSite(t, 1)
	n := &noted{}
	s.router.Observe(n.observer())
	s.engines[0].do(brokenAmid)
	s.post(pathCompletions, completion("x", `"stream":true`))
	s.until("it is over", func() bool { _, _, now := n.counts(); return len(now) == 1 })
	if _, first, now := n.counts(); now[0] != pathCompletions+" 200" || first != 1 {
		t.Errorf("%v, %d streams", now, first)
	}
}
