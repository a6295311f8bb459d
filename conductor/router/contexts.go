package router

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
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

	// Guarded by contexts.mu.
	ttl     time.Duration
	expires time.Time
	// ttlSince is when its time to live was changed last.
	ttlSince time.Time
	uses     uint64
	// where it is kept, by engine.
	kept map[string]keeping
	// asked is request with the token ids of the prefix, nil until they are known.
	asked *request
	// warmed is when an engine was done with it last, which stores it behind its answer.
	warmed time.Time
	gone   bool
}

// keeping is how an engine keeps a context.
type keeping struct {
	// Tokens that its store has pinned; 0: it is asked for again now and then instead.
	Tokens int     `json:"pinned_tokens"`
	Error  string  `json:"error,omitempty"`
	At     float64 `json:"kept_seconds_ago"`
	// at is when it was asked to, and until how long its store keeps it.
	at, until time.Time
}

// contexts are all that there are.
type contexts struct {
	config *Config

	mu  sync.Mutex
	all map[contextName]*promptContext
	// leaving are those that engines' stores are to let go of once more, the first one first.
	leaving map[string][]leaving
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
		if p.ttl != old.ttl { // it is pinned for another time
			clear(old.kept)
			old.ttl, old.ttlSince = p.ttl, now
		}
		old.expires = now.Add(p.ttl)
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

// find returns the context that a request names.
func (c *contexts) find(path string, b *body, tenant, name string, now time.Time) (*promptContext, error) {
	c.mu.Lock()
	c.expireLocked(now)
	p := c.all[contextName{tenant, name}]
	c.mu.Unlock()
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
	return p, nil
}

// used notes that a context was, which begins its time anew.
func (c *contexts) used(p *promptContext, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.uses++
	p.expires = now.Add(p.ttl)
}

// before puts a context before a request's prompt.
func (p *promptContext) before(b *body) (*body, error) {
	part := "messages"
	if p.request.path == pathCompletions {
		part = "prompt"
	}
	joined, err := join(p.body.get(part), b.get(part))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", errContext, p.name, err)
	}
	changes := []field{{part, joined}}
	for _, f := range p.body.fields { // tools and what else the template takes
		if f.name != part && f.name != "add_generation_prompt" && b.get(f.name) == nil {
			changes = append(changes, f)
		}
	}
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

// due tells whether an engine, in use since then, is to be asked to keep a context, and until
// when. What its store has pinned for as long as the context is to be kept is not asked for
// again; what is kept for longer by now is, at half the time, and what an engine only has in
// its cache more often.
func (c *contexts) due(p *promptContext, engine string, since, now time.Time) (until time.Time, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, ok := p.kept[engine]
	switch {
	case p.gone:
		return until, false
	case !ok, kept.Error != "", kept.at.Before(since):
		return p.expires, true
	case kept.Tokens > 0:
		return p.expires, kept.until.Before(p.expires) && now.Sub(kept.at) >= max(kept.until.Sub(kept.at)/2, keepEvery)
	}
	return p.expires, now.Sub(kept.at) >= warmEvery
}

// kept notes how an engine keeps a context. It is false of one that is gone.
func (c *contexts) kept(p *promptContext, engine string, how keeping) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.ttlSince.After(how.at) { // it was given another time meanwhile, and is due again
		return !p.gone
	}
	p.kept[engine] = how
	return !p.gone
}

func (c *contexts) gone(p *promptContext) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.gone
}

// known notes what a context's token ids are.
func (c *contexts) known(p *promptContext, q *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.asked = q
}

// asked returns a context's request with its token ids, nil if they are not known.
func (c *contexts) asked(p *promptContext) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.asked
}

// share is what a context that is to be kept until then has in common with a prefix.
type share struct {
	of     *promptContext
	tokens int
	until  time.Time
}

// sharing returns the contexts that begin as a prefix does. Those whose token ids are not
// known are pinned nowhere.
func (c *contexts) sharing(q *request, tokens []byte, now time.Time) (all []share) {
	c.mu.Lock()
	c.expireLocked(now)
	var asked []*request
	for _, p := range c.all {
		if a := p.asked; a != nil && a.base == q.base && a.lora == q.lora && a.salt == q.salt {
			all, asked = append(all, share{of: p, until: p.expires}), append(asked, a)
		}
	}
	c.mu.Unlock()
	for i := range all {
		all[i].tokens = common(asked[i].tokens, tokens) / tokenBytes
	}
	return slices.DeleteFunc(all, func(s share) bool { return s.tokens == 0 })
}

// common is how many bytes two texts begin with together.
func common(a, b []byte) (n int) {
	const part = 4 << 10
	most := min(len(a), len(b))
	for n+part <= most && bytes.Equal(a[n:n+part], b[n:n+part]) {
		n += part
	}
	for n < most && a[n] == b[n] {
		n++
	}
	return n
}

// forget has contexts be pinned again at an engine.
func (c *contexts) forget(shared []share, engine string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range shared {
		delete(s.of.kept, engine)
	}
}
