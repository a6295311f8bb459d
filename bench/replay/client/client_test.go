package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/standin"
)

func tokens(n int) []uint32 {
	prompt := make([]uint32, n)
	for i := range prompt {
		prompt[i] = uint32(100 + i)
	}
	return prompt
}

func TestComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 1000, PerToken: time.Millisecond, Gap: 10 * time.Millisecond}
		c := client.New(client.Options{URL: "http://s", Model: "tiny", Silence: time.Second, Transport: standin.Transport{Handler: s}})
		for round, cached := range []int{0, 96} {
			begin := time.Now()
			var at []time.Duration
			answer, err := c.Complete(t.Context(), c.Body(tokens(100), 4), 100, 4, func(n int) {
				if n != 1 {
					t.Errorf("%d tokens at once", n)
				}
				at = append(at, time.Since(begin))
			})
			if err != nil || answer != (client.Answer{OutputTokens: 4, PromptTokens: 100, CachedTokens: cached}) {
				t.Errorf("round %d: %+v, %v", round, answer, err)
			}
			first := time.Duration(100-cached) * time.Millisecond
			want := []time.Duration{first, first + 10*time.Millisecond, first + 20*time.Millisecond, first + 30*time.Millisecond}
			if !slices.Equal(at, want) {
				t.Errorf("round %d: tokens at %v, want %v", round, at, want)
			}
		}
	})
}

func TestCompleteFails(t *testing.T) {
	for fault, want := range map[standin.Fault]client.Kind{
		standin.Broken: client.ServerError, standin.Full: client.Refused, standin.Cut: client.CutOff, standin.Unmarked: client.CutOff,
		standin.Hung: client.Stalled, standin.Noise: client.Garbage, standin.Page: client.Garbage, standin.Told: client.Failed,
		standin.Short: client.WrongLength, standin.Reset: client.Unreachable,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 1000, Gap: 40 * time.Second, Fault: func(int) standin.Fault { return fault }}
			c := client.New(client.Options{URL: "http://s/v1/", Model: "tiny", Silence: time.Minute, Transport: standin.Transport{Handler: s}})
			answer, err := c.Complete(t.Context(), c.Body(tokens(20), 8), 20, 8, func(int) {})
			if client.KindOf(err) != want {
				t.Errorf("fault %d: %v, want %q", fault, err, want)
			}
			if fault == standin.Cut && answer.OutputTokens != 4 {
				t.Errorf("%d tokens before the cut", answer.OutputTokens)
			}
		})
	}
}

// The same over sockets, as far as no clock matters.
func TestCompleteOverHTTP(t *testing.T) {
	for fault, want := range map[standin.Fault]client.Kind{
		standin.Fine: "", standin.Broken: client.ServerError, standin.Cut: client.CutOff, standin.Unmarked: client.CutOff,
		standin.Page: client.Garbage, standin.Reset: client.Unreachable,
	} {
		s := httptest.NewServer(&standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 1000, Fault: func(int) standin.Fault { return fault }})
		c := client.New(client.Options{URL: s.URL, Model: "tiny", APIKey: "k"})
		_, err := c.Complete(t.Context(), c.Body(tokens(20), 8), 20, 8, func(int) {})
		if (err == nil) != (want == "") || err != nil && client.KindOf(err) != want {
			t.Errorf("fault %d: %v, want %q", fault, err, want)
		}
		c.Close()
		s.Close()
	}
	c := client.New(client.Options{URL: "http://127.0.0.1:1", Model: "tiny"})
	if _, err := c.Complete(t.Context(), c.Body(tokens(2), 1), 2, 1, func(int) {}); client.KindOf(err) != client.Unreachable {
		t.Errorf("nobody there: %v", err)
	}
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 1000, Fault: func(int) standin.Fault { return standin.Hung }}
		c := client.New(client.Options{URL: "http://s", Model: "tiny", Transport: standin.Transport{Handler: s}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := c.Complete(ctx, c.Body(tokens(20), 8), 20, 8, func(int) {}); client.KindOf(err) != client.Interrupted {
			t.Errorf("%v", err)
		}
	})
}

// scripted answers every request with one stream.
type scripted string

func (s scripted) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, string(s))
}

func TestStreams(t *testing.T) {
	chunk := func(text, reason string) string {
		return fmt.Sprintf("data: {\"choices\": [{\"index\": 0, \"text\": %q, \"finish_reason\": %s}]}\n\n", text, reason)
	}
	counted := func(n int) string {
		return fmt.Sprintf("data: {\"choices\": [{\"index\": 0, \"text\": \"x\"}], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": %d}}\n\n", n)
	}
	const done = "data: [DONE]\n\n"
	for _, test := range []struct {
		name, stream string
		events       []int
		want         client.Kind
	}{
		{"uncounted", chunk("a", "null") + chunk("", "null") + chunk("c", `"length"`) + done, []int{1, 1, 1}, ""},
		{"an empty last event", chunk("a", "null") + chunk("b", "null") + chunk("c", "null") + chunk("", `"length"`) + done, []int{1, 1, 1}, ""},
		{"several at once", counted(1) + counted(3) + done, []int{1, 2}, ""},
		{"comments, CRLF, an event of two lines", ": ping\r\n\r\nevent: x\r\ndata: {\"choices\": [{\"index\": 0,\r\ndata: \"text\": \"x\"}], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 3}}\r\n\r\n" + done, []int{3}, ""},
		{"counting back", counted(3) + counted(2) + done, []int{3}, ""},
		{"without its last empty line", counted(3) + "data: [DONE]", []int{3}, client.CutOff},
		{"another prompt", strings.ReplaceAll(counted(3), ": 3, ", ": 4, ") + done, []int{3}, client.WrongLength},
		{"too many", counted(4) + done, []int{4}, client.WrongLength},
		{"two choices", `data: {"choices": [{"index": 0}, {"index": 1}]}` + "\n\n", nil, client.Garbage},
		{"neither", "data: {}\n\n", nil, client.Garbage},
		{"below nothing", `data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": -1}}` + "\n\n", nil, client.Garbage},
		{"cached below nothing", `data: {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": -5}}}` + "\n\n", nil, client.Garbage},
		{"more cached than sent", counted(3) + `data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}}` + "\n\n" + done, []int{3}, client.Garbage},
		{"an error that is no object", `data: {"error": "x"}` + "\n\n", nil, client.Failed},
		{"an error of the server", `data: {"error": {"message": "x", "code": 500}}` + "\n\n", nil, client.Failed},
		{"an error of the request", `data: {"error": {"message": "x", "code": 400}}` + "\n\n", nil, client.BadRequest},
		{"a refusal", `data: {"error": {"message": "x", "code": 429}}` + "\n\n", nil, client.Refused},
		{"a finish that is an error", chunk("", `"error"`), nil, client.Failed},
		{"a long line", "data: " + strings.Repeat("x", 2<<20) + "\n\n", nil, client.Garbage},
		{"a long event", strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 2000), nil, client.Garbage},
		{"no end", strings.Repeat(": ping\n\n", 1<<18), nil, client.Garbage},
	} {
		c := client.New(client.Options{URL: "http://s", Model: "tiny", Transport: standin.Transport{Handler: scripted(test.stream)}})
		var events []int
		_, err := c.Complete(t.Context(), c.Body(tokens(3), 3), 3, 3, func(n int) { events = append(events, n) })
		if (err == nil) != (test.want == "") || err != nil && client.KindOf(err) != test.want || !slices.Equal(events, test.events) {
			t.Errorf("%s: %v, %v; want %v, %q", test.name, events, err, test.events, test.want)
		}
	}
}

func TestAsks(t *testing.T) {
	s := httptest.NewServer(&standin.Server{BlockTokens: 128, Vocabulary: 5000, MaxTokens: 700})
	defer s.Close()
	c := client.New(client.Options{URL: s.URL, Model: "tiny"})
	defer c.Close()
	if models, err := c.Models(t.Context()); err != nil || len(models) != 1 || models[0] != (client.Model{Name: "tiny", MaxTokens: 700}) {
		t.Errorf("models %v, %v", models, err)
	}
	if n, err := c.BlockTokens(t.Context()); err != nil || n != 128 {
		t.Errorf("block of %d, %v", n, err)
	}
	if n, err := c.Vocabulary(t.Context()); err != nil || n != 4096 {
		t.Errorf("vocabulary %d, %v", n, err)
	}
	if err := c.Reset(t.Context()); err != nil {
		t.Error(err)
	}
	none := client.New(client.Options{URL: s.URL, Model: "other"})
	defer none.Close()
	if _, err := none.Vocabulary(t.Context()); !errors.Is(err, client.ErrUntold) {
		t.Errorf("a server that refuses everything: %v", err)
	}
	silent := client.New(client.Options{URL: "http://s", Transport: standin.Transport{Handler: scripted("nothing\n")}})
	if _, err := silent.BlockTokens(t.Context()); !errors.Is(err, client.ErrUntold) {
		t.Errorf("metrics without a block: %v", err)
	}
	if _, err := silent.Models(t.Context()); client.KindOf(err) != client.Garbage {
		t.Errorf("models that are none: %v", err)
	}
}

// silent never answers.
type silent struct{}

func (silent) ServeHTTP(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestAsksOfAHungServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client.New(client.Options{URL: "http://s", Model: "tiny", Silence: time.Minute, Transport: standin.Transport{Handler: silent{}}})
		_, models := c.Models(t.Context())
		_, block := c.BlockTokens(t.Context())
		for i, err := range []error{models, block, c.Reset(t.Context())} {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("question %d: %v", i, err)
			}
		}
		if _, err := c.Vocabulary(t.Context()); client.KindOf(err) != client.Stalled {
			t.Errorf("vocabulary: %v", err)
		}
	})
}
