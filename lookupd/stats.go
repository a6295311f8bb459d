package lookupd

import (
	"fmt"
	"path"
	"strings"
	"sync/atomic"
)

// Reason says why a request on a lookup socket was answered with an error.
type Reason int

// The reasons, a fixed set: they label metrics.
const (
	ReasonMalformed  Reason = iota // does not parse
	ReasonUnknownTag               // no request we know
	ReasonHashLength               // hashes of another algorithm than the namespace's
	ReasonUnservable               // the coordinator refuses the question
	ReasonStore                    // the store failed
	ReasonPanic                    // our own fault
	numReasons
)

// String returns the reason as metrics label it.
func (r Reason) String() string {
	switch r {
	case ReasonMalformed:
		return "malformed"
	case ReasonUnknownTag:
		return "unknown_tag"
	case ReasonHashLength:
		return "hash_length"
	case ReasonUnservable:
		return "unservable"
	case ReasonStore:
		return "store"
	case ReasonPanic:
		return "panic"
	}
	return fmt.Sprintf("reason(%d)", int(r))
}

// counters of one engine, written by its handlers.
type counters struct {
	lookups, misses, pending, more, leases, resets, pings atomic.Uint64
	queryTokens, hitTokens                                atomic.Uint64
	errors                                                [numReasons]atomic.Uint64
}

// Counters is a snapshot of what was asked on lookup sockets.
type Counters struct {
	// Lookups were answered with a hit length, Misses of them with 0; Pending of
	// them may be longer later; Leases were granted.
	Lookups, Misses, Pending, Leases uint64
	// More questions had no answer until they were asked with more hashes.
	More          uint64
	Resets, Pings uint64
	// QueryTokens were asked about; HitTokens of them were there.
	QueryTokens, HitTokens uint64
	// Errors is indexed by Reason.
	Errors [numReasons]uint64
}

func (c *counters) snapshot() Counters {
	s := Counters{
		Lookups: c.lookups.Load(), Misses: c.misses.Load(), Pending: c.pending.Load(), More: c.more.Load(), Leases: c.leases.Load(),
		Resets: c.resets.Load(), Pings: c.pings.Load(),
		QueryTokens: c.queryTokens.Load(), HitTokens: c.hitTokens.Load(),
	}
	for i := range c.errors {
		s.Errors[i] = c.errors[i].Load()
	}
	return s
}

func (c *Counters) add(o *Counters) {
	c.Lookups += o.Lookups
	c.Misses += o.Misses
	c.Pending += o.Pending
	c.More += o.More
	c.Leases += o.Leases
	c.Resets += o.Resets
	c.Pings += o.Pings
	c.QueryTokens += o.QueryTokens
	c.HitTokens += o.HitTokens
	for i := range c.Errors {
		c.Errors[i] += o.Errors[i]
	}
}

// maxModels bounds the models that are told apart, those of engines that are
// gone included: they label metrics.
const maxModels = 64

// otherModels stands for the models beyond.
const otherModels = "other"

// alias is how metrics name a model: the end of its path, of bounded length.
func alias(model string) string {
	name := path.Base(model)
	return strings.ToValidUTF8(name[:min(len(name), 128)], "_")
}

// modelCounters are counts by model.
type modelCounters map[string]*Counters

// add adds an engine's counts to its model's.
func (m modelCounters) add(model string, c *Counters) {
	if m[model] == nil && len(m) >= maxModels {
		model = otherModels
	}
	if m[model] == nil {
		m[model] = &Counters{}
	}
	m[model].add(c)
}

// sessionCounters count sessions that did not end as they should.
type sessionCounters struct {
	refused atomic.Uint64 // before they were welcome
	broken  atomic.Uint64 // after
}

// EngineStats tells of a registered engine.
type EngineStats struct {
	EngineID   string
	PID        int
	Model      string
	LookupPath string
	Counters   Counters
}

// Stats is a snapshot of the server.
type Stats struct {
	// Total is of all engines since the start, those that are gone included.
	Total   Counters
	Engines []EngineStats
	// Models is Total by model, named by the end of its path; beyond 64 models it is "other".
	Models map[string]*Counters
	// Sessions are open now, of engines, store clients and probes.
	Sessions int
	// SessionsRefused ended before they were welcome, SessionsBroken by a fault
	// of the peer afterwards.
	SessionsRefused, SessionsBroken uint64
}

// Stats returns a snapshot.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	models := modelCounters{}
	out := Stats{Models: models, Sessions: len(s.mu.sessions), SessionsRefused: s.refused.refused.Load(), SessionsBroken: s.refused.broken.Load()}
	for model, c := range s.mu.retired {
		models.add(model, c)
		out.Total.add(c)
	}
	for _, e := range s.mu.engines {
		c := e.counters.snapshot()
		models.add(alias(e.spec.Model), &c)
		out.Total.add(&c)
		hello := &e.session.Hello
		out.Engines = append(out.Engines, EngineStats{
			EngineID: hello.EngineID, PID: hello.PID, Model: e.spec.Model, LookupPath: e.path, Counters: c,
		})
	}
	return out
}
