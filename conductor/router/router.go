package router

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// Router is the proxy and its API.
type Router struct {
	config       Config
	fleet        *fleet.Fleet
	stores       Stores
	transport    http.RoundTripper
	log          *slog.Logger
	tokenizer    *tokenizer
	placer       *placer
	decisions    decisions
	gate         gate
	bodies       room
	contexts     contexts
	reservations reservations
	orders       chan *copyOrder
	keepNow      []chan struct{} // a keeper's each
	buffers      sync.Pool
	counts       counts
	mux          *http.ServeMux
	observer     Observer
	// after is time.AfterFunc, or a test's.
	after func(time.Duration, func()) *time.Timer
	// lifetime is of what outlives requests; Run ends it.
	lifetime context.Context //nolint:containedctx // as it says
	cancel   context.CancelFunc
}

// counts are the router's own, since the start.
type counts struct {
	full, late, busy, noPrefiller, nobody, unserved, retries, broken, left atomic.Uint64
	copies, copiesFailed, copiesDropped, handoversLate                     atomic.Uint64
}

func (c *counts) refused(why scheduler.Reason) {
	switch why {
	case scheduler.LateFirstToken:
		c.late.Add(1)
	case scheduler.DecodeBusy:
		c.busy.Add(1)
	case scheduler.NoPrefiller:
		c.noPrefiller.Add(1)
	case scheduler.Accepted:
	}
}

// maxOrders of copies wait.
const maxOrders = 64

// New returns a router. index and stores may be nil: requests then go by load and by
// where their prefixes were sent, and contexts are kept by engines' caches. The caller
// serves it, and calls Run.
func New(config Config, index Index, f *fleet.Fleet, stores Stores, transport http.RoundTripper, log *slog.Logger) (*Router, error) {
	config.SetDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	r := &Router{
		config: config, fleet: f, stores: stores, transport: transport, log: log,
		decisions: decisions{ring: make([]*Decision, config.Decisions)},
		gate:      gate{places: config.MaxInFlight, most: config.MaxWaiting}, reservations: reservations{most: config.Reservations, all: map[uint64]reservation{}},
		orders: make(chan *copyOrder, maxOrders), mux: http.NewServeMux(), after: time.AfterFunc,
	}
	for range f.Len() {
		r.keepNow = append(r.keepNow, make(chan struct{}, 1))
	}
	r.bodies.most = config.BodiesBytes
	r.tokenizer = newTokenizer(f, transport, config.TokenBytes, &r.bodies)
	r.contexts = contexts{config: &r.config, all: map[contextName]*promptContext{}, leaving: map[string][]leaving{}}
	r.lifetime, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.placer, err = newPlacer(&r.config, f, index); err != nil {
		return nil, err
	}
	r.routes()
	return r, nil
}

// Run does what is done beside requests until ctx ends: contexts are kept, copies made,
// reservations ended. When it returns nothing of it is left, and the router answers no
// more. REQUIRES: it is called, once.
func (r *Router) Run(ctx context.Context) error {
	var background sync.WaitGroup
	for i := range r.keepNow {
		background.Go(func() { r.keeper(ctx, i) })
	}
	background.Go(func() { r.copies(ctx) })
	background.Go(func() { r.expireAll(ctx) })
	background.Wait()
	r.cancel()
	r.tokenizer.close()
	return nil
}

func (r *Router) expireAll(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.reservations.expire(now)
		}
	}
}

// routes says who answers what. What is not here is not forwarded: engines have paths
// that are for operators alone.
func (r *Router) routes() {
	r.mux.HandleFunc("POST "+pathCompletions, r.complete)
	r.mux.HandleFunc("POST "+pathChat, r.complete)
	r.mux.HandleFunc("GET /v1/models", r.models)
	r.mux.HandleFunc("GET /v1/models/{id...}", r.models)
	r.mux.HandleFunc("POST /v1/contexts", r.createContext)
	r.mux.HandleFunc("GET /v1/contexts", r.listContexts)
	r.mux.HandleFunc("GET /v1/contexts/{name}", r.listContexts)
	r.mux.HandleFunc("DELETE /v1/contexts/{name}", r.deleteContext)
	r.mux.HandleFunc("POST /schedule", r.schedule)
	r.mux.HandleFunc("POST /schedule/{id}/{event}", r.report)
	r.mux.HandleFunc("GET /decisions", r.listDecisions)
	r.mux.HandleFunc("GET /engines", r.engines)
	r.mux.HandleFunc("POST /engines/{name}/{action}", r.drain)
	for _, path := range [...]string{
		"/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/rerank", "/v2/rerank", "/v1/score", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/tokenize", "/detokenize",
		"/pooling", "/classify", "/score", "/rerank", "/version",
	} {
		r.mux.HandleFunc(path, r.other)
	}
}

// Owns tells whether a path is the router's own or an engine's, so that whoever serves
// other things beside it knows where to send a request.
func (r *Router) Owns(in *http.Request) bool {
	// Paths that go up are cleaned for some methods and not for others; none of ours do.
	if in.Method == http.MethodConnect || slices.Contains(strings.Split(in.URL.Path, "/"), "..") {
		return false
	}
	_, pattern := r.mux.Handler(in)
	return pattern != ""
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	if !r.Owns(in) {
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("%s %.200s is not served here", in.Method, in.URL.Path))
		return
	}
	r.observer.answered(r.mux, w, in)
}

// other forwards what is not understood to an engine of its model, by load.
func (r *Router) other(w http.ResponseWriter, in *http.Request) {
	began := time.Now()
	wish, content, leave, ok := admit(r, w, in, r.config.MaxBodyBytes, r.readBody)
	if !ok {
		return
	}
	defer leave()
	b, err := parseBody(content)
	if err != nil {
		b = &body{raw: content} // it is of another kind
	}
	q := &request{wishes: wish, path: in.URL.Path, model: b.text("model"), streamed: b.isTrue("stream"), count: 1 + len(content)/charactersOfToken, why: errNoQuestion.Error()}
	if q.model == "" {
		q.model, q.streamed = formOf(in.Header, content)
	}
	q.base = q.model
	c := &call{router: r, w: w, in: in, request: q, body: &body{raw: content}, began: began}
	c.run(in.Context())
}

// model is one as OpenAI's API has it.
type model struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	OwnedBy   string `json:"owned_by"`
	Parent    string `json:"parent,omitempty"`
	MaxTokens int    `json:"max_model_len,omitempty"`
}

// models answers with what engines in use serve.
func (r *Router) models(w http.ResponseWriter, in *http.Request) {
	id := in.PathValue("id")
	all := []model{}
	for _, m := range r.fleet.Models() {
		one := model{m.ID, "model", "vllm", m.Parent, m.MaxTokens}
		if m.ID == id {
			writeJSON(w, http.StatusOK, one)
			return
		}
		all = append(all, one)
	}
	if id != "" {
		r.nobody(w, noneServes, id)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": all})
}

// listDecisions answers with the latest decisions: all, those that were refused, or one.
func (r *Router) listDecisions(w http.ResponseWriter, in *http.Request) {
	query := in.URL.Query()
	limit, id := 100, uint64(0)
	var err error
	if text := query.Get("limit"); text != "" {
		limit, err = strconv.Atoi(text)
	}
	if text := query.Get("id"); text != "" && err == nil {
		id, err = strconv.ParseUint(text, 10, 64)
	}
	if err != nil || limit < 1 {
		fail(w, http.StatusBadRequest, badRequest, "", "limit and id are whole numbers above 0")
		return
	}
	engine, refused := query.Get("engine"), query.Has("refused")
	found := r.decisions.latest(limit, func(d *Decision) bool {
		return (id == 0 || d.ID == id) && (engine == "" || d.Prefill == engine || d.Decode == engine) && (!refused || d.Refused != "")
	})
	writeJSON(w, http.StatusOK, map[string]any{"made": r.decisions.count(), "decisions": found})
}

// engines answers with what is known of engines, and the speeds that were learned.
func (r *Router) engines(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"engines": r.fleet.Views(), "learned": r.fleet.Costs().Learned()})
}

// drain answers POST /engines/{name}/drain and /resume.
func (r *Router) drain(w http.ResponseWriter, in *http.Request) {
	name, action := in.PathValue("name"), in.PathValue("action")
	if action != "drain" && action != "resume" || !r.fleet.Drain(name, action == "drain") {
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("want /engines/<name>/drain or /resume; there is no %.200q", strings.TrimSpace(name)))
		return
	}
	r.log.Info("an engine's new requests", "engine", name, "action", action)
	writeJSON(w, http.StatusOK, map[string]any{"name": name, "draining": action == "drain"})
}

// Stats are the router's figures, since the start where they count something.
type Stats struct {
	Decisions uint64
	// InFlight requests are under way and Waiting wait for a place.
	InFlight, Waiting int
	// Full were turned away for want of a place, RefusedLate and RefusedBusy by the
	// scheduler, Nobody because no engine was there, Unserved because none has their model.
	Full, RefusedLate, RefusedBusy, Nobody, Unserved uint64
	// Retries at another engine, answers that broke off in the middle, clients that left.
	Retries, Broken, Left uint64
	// Copies of hot prefixes that were made, that could not be, that were too many.
	Copies, CopiesFailed, CopiesDropped uint64
	// HandoversLate went to the decode engine before the index said that all was stored.
	HandoversLate uint64
	// Token ids: found, asked for, waited for with others, not got; and what is remembered.
	TokenHits, TokensAsked, TokensJoined, TokensFailed uint64
	TokenBytes                                         int64
	Contexts, Reservations                             int
}

// Stats returns the figures.
func (r *Router) Stats() Stats {
	c := &r.counts
	tokens, bytes := r.tokenizer.cache.counts()
	s := Stats{
		Decisions: r.decisions.count(), Full: c.full.Load(), RefusedLate: c.late.Load(), RefusedBusy: c.busy.Load(), Nobody: c.nobody.Load() + c.noPrefiller.Load(), Unserved: c.unserved.Load(),
		Retries: c.retries.Load(), Broken: c.broken.Load(), Left: c.left.Load(), Copies: c.copies.Load(), CopiesFailed: c.copiesFailed.Load(),
		CopiesDropped: c.copiesDropped.Load(), HandoversLate: c.handoversLate.Load(),
		TokenHits: tokens.Hits, TokensAsked: tokens.Asked, TokensJoined: tokens.Joined, TokensFailed: tokens.Failed, TokenBytes: bytes,
		Contexts: len(r.contexts.live("", time.Now())),
	}
	s.InFlight, s.Waiting = r.gate.load()
	r.reservations.mu.Lock()
	s.Reservations = len(r.reservations.all)
	r.reservations.mu.Unlock()
	return s
}
