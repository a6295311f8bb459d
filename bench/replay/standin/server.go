package standin

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/pause"
)

// maxBody bounds a request.
const maxBody = 64 << 20

// Fault is how one request is to fail.
type Fault int

// Faults.
const (
	Fine Fault = iota
	// Broken answers 500.
	Broken
	// Full answers 429.
	Full
	// Cut breaks the stream behind half of the tokens.
	Cut
	// Unmarked ends the stream in order, without its closing mark.
	Unmarked
	// Hung sends nothing more behind half of the tokens.
	Hung
	// Noise sends an event that is no completion.
	Noise
	// Page answers with a web page.
	Page
	// Told fails the request in the stream, as vLLM does.
	Told
	// Short ends one token early, in order.
	Short
	// Reset ends the connection before an answer.
	Reset
)

// Server is an http.Handler. Its fields are set before the first request.
type Server struct {
	BlockTokens int
	Vocabulary  uint32
	MaxTokens   int
	// PerToken is how long a token of the prompt takes that is not cached; requests
	// take turns at it. Gap is the time between two generated tokens.
	PerToken, Gap time.Duration
	// Fault says how the request in this place, from 0, fails; nil is never.
	Fault func(place int) Fault
	// Silent tells neither counts nor what was cached.
	Silent bool

	mu struct {
		sync.Mutex
		asked  int
		chains map[uint64]bool
		// prefill has room for the request whose turn it is. (Who waits for a mutex keeps
		// virtual time from going on.)
		prefill chan struct{}
	}
}

type ask struct {
	Model     string   `json:"model"`
	Prompt    []uint32 `json:"prompt"`
	MaxTokens int      `json:"max_tokens"`
	MinTokens int      `json:"min_tokens"`
	IgnoreEOS bool     `json:"ignore_eos"`
	Stream    bool     `json:"stream"`
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[{"id":"tiny","max_model_len":%d}]}`, s.MaxTokens)
	case "/metrics":
		fmt.Fprintf(w, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\",engine=\"0\"} 1.0\n", s.BlockTokens)
	case "/reset_prefix_cache":
		s.mu.Lock()
		s.mu.chains = nil
		s.mu.Unlock()
	case "/v1/completions":
		s.complete(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	var a ask
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&a); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, token := range a.Prompt {
		if token >= s.Vocabulary {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprintf(w, "data: {\"error\": {\"message\": \"Token id %d is out of vocabulary\", \"type\": \"BadRequestError\", \"param\": null, \"code\": 400}}\n\ndata: [DONE]\n\n", token)
			return
		}
	}
	if len(a.Prompt) == 0 || a.Model != "tiny" || !a.Stream || !a.IgnoreEOS || a.MinTokens != a.MaxTokens || len(a.Prompt)+a.MaxTokens > s.MaxTokens {
		http.Error(w, "not what is served here", http.StatusBadRequest)
		return
	}
	fault := Fine
	if len(a.Prompt) > 1 && s.Fault != nil { // not a question for the vocabulary
		s.mu.Lock()
		fault = s.Fault(s.mu.asked)
		s.mu.asked++
		s.mu.Unlock()
	}
	switch fault {
	case Broken:
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	case Full:
		http.Error(w, "full", http.StatusTooManyRequests)
		return
	case Page:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintln(w, "<html>")
		return
	case Reset:
		panic(http.ErrAbortHandler)
	}
	turn := s.turn()
	turn <- struct{}{}
	cached := s.lookup(a.Prompt)
	ok := pause.For(r.Context(), time.Duration(len(a.Prompt)-cached)*s.PerToken) == nil
	s.store(a.Prompt)
	<-turn
	if ok {
		s.stream(w, r, &a, cached, fault)
	}
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, a *ask, cached int, fault Fault) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	say := func(format string, arguments ...any) {
		fmt.Fprintf(w, "data: "+format+"\n\n", arguments...)
		w.(http.Flusher).Flush() //nolint:errcheck // both kinds of writers are
	}
	output := a.MaxTokens
	if fault == Short {
		output--
	}
	for i := range output {
		if i > 0 && pause.For(r.Context(), s.Gap) != nil {
			return
		}
		if i == a.MaxTokens/2 {
			switch fault {
			case Cut:
				panic(http.ErrAbortHandler)
			case Unmarked:
				return
			case Hung:
				<-r.Context().Done()
				return
			case Noise:
				say("%s", `{"object": "nothing`)
				return
			case Told:
				say("%s", `{"error": {"message": "the engine died", "code": 500}}`)
				return
			}
		}
		reason := "null"
		if i == output-1 {
			reason = `"length"`
		}
		counts := fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, len(a.Prompt), i+1)
		if s.Silent {
			counts = ""
		}
		say(`{"choices":[{"index":0,"text":"x","finish_reason":%s}]%s}`, reason, counts)
	}
	if !s.Silent {
		say(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, len(a.Prompt), output, cached)
	}
	say("[DONE]")
}

func (s *Server) turn() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.prefill == nil {
		s.mu.prefill = make(chan struct{}, 1)
	}
	return s.mu.prefill
}

// lookup is the length of the longest prefix of whole blocks that was stored,
// without the last token.
func (s *Server) lookup(prompt []uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := 0
	for i, chain := range s.chains(prompt) {
		if end := (i + 1) * s.BlockTokens; end <= len(prompt)-1 && s.mu.chains[chain] {
			hit = end
			continue
		}
		break
	}
	return hit
}

func (s *Server) store(prompt []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.chains == nil {
		s.mu.chains = map[uint64]bool{}
	}
	for _, chain := range s.chains(prompt) {
		s.mu.chains[chain] = true
	}
}

// chains are the digests of the prompt's whole blocks, each with all before it.
func (s *Server) chains(prompt []uint32) []uint64 {
	var chains []uint64
	h := fnv.New64a()
	for i, token := range prompt {
		_, _ = h.Write([]byte{byte(token), byte(token >> 8), byte(token >> 16), byte(token >> 24)}) // never fails
		if (i+1)%s.BlockTokens == 0 {
			chains = append(chains, h.Sum64())
		}
	}
	return chains
}
