package router

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// catalog knows how the index is to be asked about a model: its services, looked at now
// and then, for requests are many and services change seldom.
type catalog struct {
	index Index
	known atomic.Pointer[services]
	// renewing is had by who looks at the services anew. Nobody waits for it who knows any.
	renewing sync.Mutex
}

// services are the index's, as they were at a moment.
type services struct {
	at time.Time
	// forms in which a model's blocks are told of.
	forms map[modelName][]form
	// follows has the instances whose events are followed.
	follows map[string]bool
	// stores has the instances of which a store is followed, and shared the models of which
	// one is that all instances load from.
	stores map[string]bool
	shared map[modelName]bool
}

type modelName struct{ tenant, model, lora string }

// form is what blocks of a model have in common.
type form struct {
	blockTokens int
	salt        string
}

// catalogAge is how old what is known of the services may be, unless it is being looked at.
const catalogAge = time.Second

func (c *catalog) services(now time.Time) *services {
	known := c.known.Load()
	switch {
	case known != nil && (now.Sub(known.at) < catalogAge || !c.renewing.TryLock()):
		return known
	case known == nil:
		c.renewing.Lock()
	}
	defer c.renewing.Unlock()
	if other := c.known.Load(); other != known {
		return other // somebody was faster
	}
	fresh := &services{at: now, forms: map[modelName][]form{}, follows: map[string]bool{}, stores: map[string]bool{}, shared: map[modelName]bool{}}
	if c.index != nil {
		for _, s := range c.index.Services() {
			fresh.add(&s)
		}
	}
	c.known.Store(fresh)
	return fresh
}

func (s *services) add(status *contract.Status) {
	name, f := modelName{status.Tenant, status.Model, status.LoRA}, form{status.BlockTokens, status.AdditionalSalt}
	if !slices.Contains(s.forms[name], f) {
		s.forms[name] = append(s.forms[name], f)
	}
	switch {
	case status.Type != contract.TypeMooncake:
		s.follows[status.Instance] = true
	case status.Rank == prefixindex.Shared:
		s.stores[status.Instance] = true
	default: // a store of a rank is everybody's
		s.shared[modelName{tenant: status.Tenant, model: status.Model}] = true
	}
}

// tells whether somebody says what an instance can load for a request from a store;
// everybody: it is a store that all load from.
func (s *services) tells(r *request, instance string) (told, everybody bool) {
	everybody = s.shared[modelName{tenant: r.tenant, model: r.base}]
	return everybody || s.stores[instance], everybody
}

// holding is what a rank has of a prompt, in tokens.
type holding struct {
	// local is what its engine needs not compute, stored what is in stores.
	local, stored int
	state         contract.State
	known         bool
}

type rankName struct {
	instance string
	rank     int
}

// holdings asks the index who has how much of a request's prompt.
func (c *catalog) holdings(r *request, now time.Time) map[rankName]holding {
	if len(r.tokens) == 0 || c.index == nil {
		return nil
	}
	all := map[rankName]holding{}
	s := c.services(now)
	var room [16]contract.RankMatch
	// Engines that serve an adapter are registered for their base model, or for the adapter.
	for _, name := range r.names() {
		for _, f := range s.forms[name] {
			q := contract.Query{
				Tenant: r.tenant, Model: name.model, LoRA: r.lora, BlockTokens: f.blockTokens, Tokens: r.tokens,
				CacheSalt: r.salt, AdditionalSalt: f.salt, HasAdditionalSalt: true,
			}
			for _, m := range c.index.Query(&q, room[:0]) {
				if m.Foreign {
					continue
				}
				at := rankName{m.Instance, m.Rank}
				h := all[at]
				h.local = max(h.local, m.Through[prefixindex.Disk])
				h.stored = max(h.stored, m.In[prefixindex.CPU], m.In[prefixindex.Disk])
				h.state, h.known = max(h.state, m.State), true
				all[at] = h
			}
		}
	}
	return all
}

// names are those under which a request's model may be registered.
func (r *request) names() []modelName {
	names := []modelName{{r.tenant, r.base, ""}}
	if r.lora != "" {
		names = append(names, modelName{r.tenant, r.base, r.lora})
	}
	return names
}
