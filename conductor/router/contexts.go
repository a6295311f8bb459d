package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// A context is a prefix that has a name: messages, or the beginning of a prompt. It is
// computed once, kept in stores and caches until its time is over or it is deleted, and
// put before the prompts of requests that name it.
type promptContext struct {
	name, tenant string
	// request is as a request of the prefix alone would be; path and body are its.
	request *request
	body    *body
	created time.Time
	ttl     time.Duration

	// Guarded by contexts.mu.
	expires time.Time
	uses    uint64
	// where it is kept, by engine.
	kept map[string]keeping
	gone bool
}

// keeping is how an engine keeps a context.
type keeping struct {
	// Tokens that its store has pinned; 0: it is asked for again now and then instead.
	Tokens int     `json:"pinned_tokens"`
	Error  string  `json:"error,omitempty"`
	At     float64 `json:"kept_seconds_ago"`
	at     time.Time
}

// contexts are all that there are.
type contexts struct {
	config *Config

	mu  sync.Mutex
	all map[contextName]*promptContext
}

type contextName struct{ tenant, name string }

var (
	errContext = errors.New("context")
	errExists  = errors.New("there is another one of that name")
	errMany    = errors.New("there are as many as there may be")
)

// add takes one in. The same again begins its time anew.
func (c *contexts) add(p *promptContext, now time.Time) (*promptContext, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked(now)
	key := contextName{p.tenant, p.name}
	if old := c.all[key]; old != nil {
		if old.request.path != p.request.path || !bytes.Equal(old.body.raw, p.body.raw) {
			return nil, fmt.Errorf("%w %q: %w", errContext, p.name, errExists)
		}
		if p.ttl > old.ttl { // what it is pinned for is over too soon
			clear(old.kept)
		}
		old.ttl, old.expires = p.ttl, now.Add(p.ttl)
		return old, nil
	}
	if len(c.all) == c.config.Contexts {
		return nil, fmt.Errorf("%w %q: %w", errContext, p.name, errMany)
	}
	p.created, p.expires, p.kept = now, now.Add(p.ttl), map[string]keeping{}
	c.all[key] = p
	return p, nil
}

// remove takes one out, nil if there is none.
func (c *contexts) remove(tenant, name string) *promptContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.all[contextName{tenant, name}]
	if p != nil {
		p.gone = true
		delete(c.all, contextName{tenant, name})
	}
	return p
}

// expireLocked takes out those whose time is over. Their stores let go of them by
// themselves.
func (c *contexts) expireLocked(now time.Time) {
	for key, p := range c.all {
		if p.expires.Before(now) {
			p.gone = true
			delete(c.all, key)
		}
	}
}

// live returns those that are there, of a tenant or of all.
func (c *contexts) live(tenant string, now time.Time) []*promptContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked(now)
	var found []*promptContext
	for key, p := range c.all {
		if tenant == "" || key.tenant == tenant {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *promptContext) int { return strings.Compare(a.tenant+"\x00"+a.name, b.tenant+"\x00"+b.name) })
	return found
}

// expand puts a context before a request's prompt, and begins its time anew.
func (c *contexts) expand(path string, b *body, tenant, name string, now time.Time) (*body, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked(now)
	p := c.all[contextName{tenant, name}]
	switch {
	case p == nil:
		return nil, fmt.Errorf("%w: there is no %q", errContext, name)
	case p.request.path != path:
		return nil, fmt.Errorf("%w %q is for %s", errContext, name, p.request.path)
	case b.text("model") != p.request.model:
		return nil, fmt.Errorf("%w %q is of the model %q", errContext, name, p.request.model)
	case b.text("cache_salt") != p.request.salt:
		return nil, fmt.Errorf("%w %q has another cache_salt", errContext, name)
	}
	part := "messages"
	if path == pathCompletions {
		part = "prompt"
	}
	joined, err := join(p.body.get(part), b.get(part))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", errContext, name, err)
	}
	changes := []field{{part, joined}}
	for _, f := range p.body.fields { // tools and what else the template takes
		if f.name != part && f.name != "add_generation_prompt" && b.get(f.name) == nil {
			changes = append(changes, f)
		}
	}
	p.uses++
	p.expires = now.Add(p.ttl)
	return parseBody(b.with(changes...))
}

var errJoin = errors.New("the request's prompt is not of the context's kind")

// join puts two lists, or two texts, one behind the other.
func join(before, after []byte) ([]byte, error) {
	if len(before) < 2 || len(after) < 2 || before[0] != after[0] || before[0] != '[' && before[0] != '"' {
		return nil, errJoin
	}
	head, tail := before[:len(before)-1], after[1:]
	if before[0] == '"' {
		return append(bytes.Clone(head), tail...), nil
	}
	out := bytes.Clone(bytes.TrimRight(head, " \t\r\n"))
	if tail = bytes.TrimLeft(tail, " \t\r\n"); len(out) > 1 && tail[0] != ']' {
		out = append(out, ',')
	}
	return append(out, tail...), nil
}

// contextBody checks what a context is made of and returns the request of its prefix
// alone.
func contextBody(b *body) (path string, prefix *body, err error) {
	path, part := pathChat, "messages"
	if b.given("prompt") {
		path, part = pathCompletions, "prompt"
	}
	value := b.get(part)
	if len(value) < 2 || value[0] != '[' && (path == pathChat || value[0] != '"') {
		return "", nil, fmt.Errorf("%w: want messages, or a prompt", errContext)
	}
	var fields []field
	for _, name := range [...]string{"model", part, "tools", "cache_salt", "chat_template", "chat_template_kwargs", "add_special_tokens", "documents"} {
		if b.given(name) {
			fields = append(fields, field{name, b.get(name)})
		}
	}
	if path == pathChat {
		// What comes behind it is not the answer's beginning.
		fields = append(fields, field{"add_generation_prompt", []byte("false")})
	}
	prefix, err = parseBody((&body{}).with(fields...))
	return path, prefix, err
}

// keepAll sees that contexts are kept, until ctx ends. What a store has pinned is asked
// for again at half its time, what an engine only has in its cache more often.
func (r *Router) keepAll(ctx context.Context) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.keepNow:
		case <-ticker.C:
		}
		for _, p := range r.contexts.live("", time.Now()) {
			r.keep(ctx, p)
		}
	}
}

// keepEvery is how often contexts are looked after, and warmEvery how often an engine is
// asked for one that it keeps in its cache alone.
const (
	keepEvery = 10 * time.Second
	warmEvery = 2 * time.Minute
	keepsFor  = time.Minute
)

// keep has each engine that is in use keep a context, where that is due.
func (r *Router) keep(ctx context.Context, p *promptContext) {
	for _, c := range r.fleet.Candidates(p.request.model, nil) {
		if c.Rank != 0 || c.Role == fleet.Decode {
			continue
		}
		ttl, due := r.due(p, c.Name)
		if !due {
			continue
		}
		one, cancel := context.WithTimeout(ctx, keepsFor)
		tokens, err := r.keepAt(one, p, ttl, &c)
		cancel()
		kept := keeping{Tokens: tokens, at: time.Now()}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			kept.Error = err.Error()
			r.log.Warn("a context is not kept", "context", p.name, "engine", c.Name, "error", err)
		}
		r.contexts.mu.Lock()
		if p.ttl <= ttl { // or it was made longer meanwhile, and is due again
			p.kept[c.Name] = kept
		}
		gone := p.gone
		r.contexts.mu.Unlock()
		if gone { // while it was being kept
			r.unkeep(ctx, p)
			return
		}
	}
}

// due tells whether an engine is to be asked to keep a context, and for how long.
func (r *Router) due(p *promptContext, engine string) (ttl time.Duration, due bool) {
	r.contexts.mu.Lock()
	defer r.contexts.mu.Unlock()
	kept, ok := p.kept[engine]
	again := warmEvery
	if kept.Tokens > 0 {
		again = max(p.ttl/2, keepEvery)
	}
	return p.ttl, !p.gone && (!ok || kept.Error != "" || time.Since(kept.at) >= again)
}

// keepAt has an engine compute a context's prefix, or load it, and its store pin it.
func (r *Router) keepAt(ctx context.Context, p *promptContext, ttl time.Duration, c *fleet.Candidate) (int, error) {
	q := *p.request
	exact := r.tokens(ctx, &q, p.body, maxTokenize)
	if q.tokens == nil || !exact {
		return 0, fmt.Errorf("%w: its token ids are not known: %s", errContext, q.why)
	}
	// What is new in the store is pinned as it comes, what is there already below.
	wish := fmt.Sprintf(`{"mooncake_sidecar":{"ttl_s":%d,"pin":"soft"}}`, int(ttl.Seconds()))
	work := r.fleet.Costs().Work(q.count, 0)
	ctx, flight := r.fleet.Begin(ctx, c.Target, fleet.Load{Tokens: q.count, Prefill: true, Work: work, First: work, Blind: true})
	defer flight.End()
	if err := r.warm(ctx, c.Target, &q, q.tokens, []field{{transferParams, []byte(wish)}}); err != nil {
		return 0, err
	}
	if r.stores == nil {
		return 0, nil
	}
	tokens, err := r.stores.Pin(ctx, c.Name, r.prefixOf(&q, q.tokens), ttl)
	if errors.Is(err, ErrNoStore) {
		return 0, nil
	}
	return tokens, err
}

// unkeep has stores let go of a context.
func (r *Router) unkeep(ctx context.Context, p *promptContext) {
	if r.stores == nil {
		return
	}
	q := *p.request
	if r.tokens(ctx, &q, p.body, maxTokenize); q.tokens == nil {
		return // they let go of it when its time is over
	}
	for i := range r.fleet.Len() {
		name := r.fleet.Engine(i).Name
		if err := r.stores.Unpin(ctx, name, r.prefixOf(&q, q.tokens)); err != nil && !errors.Is(err, ErrNoStore) {
			r.log.Warn("a store was not told to let go of a context", "context", p.name, "engine", name, "error", err)
		}
	}
}

// contextView is a context as its user sees it.
type contextView struct {
	Name    string             `json:"name"`
	Model   string             `json:"model"`
	Created time.Time          `json:"created"`
	Expires time.Time          `json:"expires"`
	TTL     float64            `json:"ttl_seconds"`
	Uses    uint64             `json:"uses"`
	Kept    map[string]keeping `json:"kept"`
}

func (c *contexts) view(p *promptContext, now time.Time) contextView {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := contextView{Name: p.name, Model: p.request.model, Created: p.created, Expires: p.expires, TTL: p.ttl.Seconds(), Uses: p.uses, Kept: map[string]keeping{}}
	for name, k := range p.kept {
		k.At = now.Sub(k.at).Seconds()
		v.Kept[name] = k
	}
	return v
}

// createContext answers POST /v1/contexts.
func (r *Router) createContext(w http.ResponseWriter, in *http.Request) {
	wish, b, leave, ok := admit(r, w, in, min(r.config.ContextBytes, r.config.MaxBodyBytes), r.readObject)
	if !ok {
		return
	}
	defer leave()
	path, prefix, err := contextBody(b)
	name, ttl := b.text("name"), r.config.ContextTTL
	if n := b.integer("ttl_seconds", 0); n > 0 {
		ttl = time.Duration(min(n, int(r.config.MaxContextTTL.Seconds()))) * time.Second
	} else if b.given("ttl_seconds") {
		err = fmt.Errorf("%w: ttl_seconds; want a whole number of seconds", errContext)
	}
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return
	case name == "" || len(name) > maxName:
		fail(w, http.StatusBadRequest, badRequest, "", fmt.Sprintf("name: want 1 to %d bytes", maxName))
		return
	}
	q := &request{wishes: wish, authorization: in.Header.Get("Authorization")}
	q.describe(path, prefix)
	p, err := r.contexts.add(&promptContext{name: name, tenant: wish.tenant, request: q, body: prefix, ttl: ttl}, time.Now())
	switch {
	case errors.Is(err, errExists):
		fail(w, http.StatusConflict, badRequest, "", err.Error())
		return
	case err != nil:
		failLater(w, http.StatusTooManyRequests, tooMany, "contexts", err.Error(), time.Minute)
		return
	}
	select {
	case r.keepNow <- struct{}{}:
	default: // it is coming
	}
	writeJSON(w, http.StatusOK, r.contexts.view(p, time.Now()))
}

func (r *Router) listContexts(w http.ResponseWriter, in *http.Request) {
	wish, err := wishesOf(in.Header, &r.config)
	if err != nil {
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return
	}
	now, name := time.Now(), in.PathValue("name")
	views := []contextView{}
	for _, p := range r.contexts.live(wish.tenant, now) {
		if name == "" || p.name == name {
			views = append(views, r.contexts.view(p, now))
		}
	}
	switch {
	case name == "":
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": views})
	case len(views) == 0:
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("there is no context %.200q", name))
	default:
		writeJSON(w, http.StatusOK, views[0])
	}
}

func (r *Router) deleteContext(w http.ResponseWriter, in *http.Request) {
	wish, err := wishesOf(in.Header, &r.config)
	if err != nil {
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return
	}
	name := in.PathValue("name")
	p := r.contexts.remove(wish.tenant, name)
	if p == nil {
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("there is no context %.200q", name))
		return
	}
	r.unkeep(in.Context(), p)
	writeJSON(w, http.StatusOK, map[string]any{"name": name, "deleted": true})
}
