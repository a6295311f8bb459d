package router

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

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
	if path == pathCompletions && value[0] == '[' { // several prompts are no prefix
		if ids, err := parseIDs(value); err != nil || len(ids) == 0 {
			return "", nil, fmt.Errorf("%w: prompt: want a text, or token ids", errContext)
		}
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
	r.wakeKeepers()
	writeJSON(w, http.StatusOK, r.contexts.view(p, time.Now()))
}

// expand puts the context that a request names before its prompt. What that takes is taken from
// the room of all bodies, until done. Without ok the client has its answer.
func (r *Router) expand(w http.ResponseWriter, path string, b *body, wish *wishes, now time.Time) (expanded *body, done func(), ok bool) {
	p, err := r.contexts.find(path, b, wish.tenant, wish.context, now)
	if err != nil {
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return nil, nil, false
	}
	size := int64(len(p.body.raw) + len(b.raw))
	if !r.bodies.take(size) {
		r.counts.full.Add(1)
		failLater(w, http.StatusTooManyRequests, tooMany, "full", errNoRoom.Error(), time.Second)
		return nil, nil, false
	}
	if expanded, err = p.before(b); err != nil {
		r.bodies.give(size)
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return nil, nil, false
	}
	r.contexts.used(p, now)
	return expanded, func() { r.bodies.give(size) }, true
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
	// A client that leaves takes nothing of it back, and no store waits for another.
	var telling sync.WaitGroup
	for i := range r.fleet.Len() {
		telling.Go(func() { r.leave(r.lifetime, p, r.fleet.Engine(i).Name) })
	}
	telling.Wait()
	writeJSON(w, http.StatusOK, map[string]any{"name": name, "deleted": true})
}
