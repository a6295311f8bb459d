package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// placer decides where requests go.
type placer struct {
	config  *Config
	fleet   *fleet.Fleet
	catalog *catalog
	// seed of the hashes of prefixes.
	seed  uint64
	began time.Time

	mu          sync.Mutex
	scheduler   *scheduler.Scheduler
	replication *scheduler.Replication
	history     *history
	turn        int
	candidates  []fleet.Candidate
	facts       scheduler.Facts
	// served has when models were asked for last that an engine served.
	served map[string]time.Time
}

func newPlacer(c *Config, f *fleet.Fleet, index Index) (*placer, error) {
	seed := rand.Uint64()
	s, err := scheduler.New(c.options(), f.Costs(), rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // it draws engines
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &placer{
		config: c, fleet: f, catalog: &catalog{index: index}, seed: seed, began: time.Now(),
		scheduler: s, replication: scheduler.NewReplication(c.Replication), history: newHistory(seed), served: map[string]time.Time{},
	}, nil
}

// placed is where a request goes. Its flights are counted in already; whoever gets them
// ends them.
type placed struct {
	decision *Decision
	refused  scheduler.Reason
	// apart: prefill is another engine's than decode, and is to come first.
	apart           bool
	prefill, decode fleet.Target
	// ctx and flight are of the engine that answers, prefillCtx and prefillFlight of the one
	// before, if there is one.
	ctx, prefillCtx       context.Context //nolint:containedctx // of one call
	flight, prefillFlight *fleet.Flight
	priority              int
	copy                  *copyOrder
}

// nobody says why there was no engine to choose from.
type nobody int

const (
	somebody nobody = iota
	noneInUse
	noneServes
)

// choice is what engines there are to choose from.
type choice struct {
	// not are left out, by index; only, if not nil, are looked at, by name.
	not  []int
	only []string
	// dry: nothing is counted in.
	dry bool
}

// among fills in the candidates.
func (p *placer) among(model string, c *choice) {
	p.candidates = slices.DeleteFunc(p.fleet.Candidates(model, p.candidates[:0]), func(one fleet.Candidate) bool {
		return slices.Contains(c.not, one.Engine) || c.only != nil && !slices.Contains(c.only, one.Name)
	})
}

// place decides, and counts the request in where it goes.
func (p *placer) place(ctx context.Context, r *request, among choice) (placed, nobody) {
	now := time.Now()
	held := p.catalog.holdings(r, now)
	follows := p.catalog.services(now).follows
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.among(r.model, &among); len(p.candidates) == 0 {
		if p.fleet.Usable() == 0 || len(among.not) > 0 || among.only != nil || p.mayServe(r.model, now) {
			return placed{}, noneInUse
		}
		return placed{}, noneServes
	}
	p.serves(r.model, now)
	prefillers, decoders := p.sides()
	p.gather(r, held, follows, prefillers, decoders, now)
	q := scheduler.Request{Tokens: r.count, Blocks: r.count, BlockTokens: 1, TTFT: r.ttft, TBT: r.tbt}
	prefillers, busy, none := p.slow(&q, prefillers, decoders)
	if p.config.Policy == RoundRobin {
		at := p.turn % len(prefillers)
		prefillers, p.facts.Prefill = prefillers[at:at+1], p.facts.Prefill[at:at+1]
		p.turn++
	}
	if decoders == nil {
		p.facts.Decode = nil
	}
	d := p.scheduler.Decide(&q, &p.facts)
	if none && d.Refused == scheduler.Accepted {
		d.Refused = scheduler.DecodeBusy
	}
	made := p.explain(r, &d, held, prefillers, decoders, now)
	p.explainBusy(made, r, held, busy)
	out := placed{decision: made, refused: d.Refused}
	if d.Refused != scheduler.Accepted {
		return out, somebody
	}
	prefill := &p.candidates[prefillers[d.Prefill]]
	decode := prefill
	if d.Decode != scheduler.Nobody {
		decode = &p.candidates[decoders[d.Decode]]
	}
	out.prefill, out.decode, out.apart = prefill.Target, decode.Target, prefill.Target != decode.Target
	out.priority = p.priority(r, d.Term.Work, now)
	if among.dry {
		return out, somebody
	}
	p.begin(ctx, r, &d, &out)
	p.history.sent(r.hashes, prefill.Target, now)
	out.copy = p.hot(r, prefillers, now)
	return out, somebody
}

// Models that were served are remembered, so many and for so long: an engine that is out does
// not tell what it will serve.
const (
	maxServed   = 1 << 12
	servedKeeps = time.Hour
)

// serves notes that a model is served, if an engine says so of it.
func (p *placer) serves(model string, now time.Time) {
	if _, known := p.served[model]; !known {
		if _, known = p.fleet.Model(model); !known {
			return
		}
		if len(p.served) == maxServed {
			clear(p.served)
		}
	}
	p.served[model] = now
}

// mayServe tells whether an engine that is not in use may serve a model.
func (p *placer) mayServe(model string, now time.Time) bool {
	if _, known := p.fleet.Model(model); known { // it is drained, or asleep
		return true
	}
	at, known := p.served[model]
	return known && now.Sub(at) < servedKeeps
}

// sides returns which candidates prefill and which decode. Decoders are nil where each
// engine does both: the one that prefills decodes.
func (p *placer) sides() (prefillers, decoders []int) {
	apart := slices.ContainsFunc(p.candidates, func(c fleet.Candidate) bool { return c.Role == fleet.Decode })
	for i := range p.candidates {
		switch role := p.candidates[i].Role; {
		case role == fleet.Prefill, role == fleet.Both && !apart:
			prefillers = append(prefillers, i)
		case role == fleet.Decode:
			decoders = append(decoders, i)
		default:
			prefillers, decoders = append(prefillers, i), append(decoders, i)
		}
	}
	if len(prefillers) == 0 { // a decode engine can do both, more slowly
		prefillers = decoders
		decoders = nil
	}
	return prefillers, decoders
}

// gather fills in the facts.
func (p *placer) gather(r *request, held map[rankName]holding, follows map[string]bool, prefillers, decoders []int, now time.Time) {
	p.facts.Prefill, p.facts.Decode = p.facts.Prefill[:0], p.facts.Decode[:0]
	p.facts.Forecast = p.fleet.Forecast()
	sent := p.history.matches(r.hashes, now)
	for _, i := range prefillers {
		c := &p.candidates[i]
		h := heldBy(held, c)
		c.Prefill.LocalBlocks = h.local
		for _, s := range sent {
			// What it was sent it has, or will have when the request's turn comes.
			if s.to == c.Target && !s.since.Before(c.Since) && (!follows[c.Name] || c.Prefill.Outstanding > 0) {
				c.Prefill.LocalBlocks = max(h.local, min(s.tokens, r.count))
			}
		}
		if p.config.Pooled {
			c.Prefill.ReadyBlocks = h.stored
		}
		p.facts.Prefill = append(p.facts.Prefill, c.Prefill)
	}
	for _, i := range decoders {
		c := &p.candidates[i]
		c.Decode.CachedBlocks = heldBy(held, c).local
		p.facts.Decode = append(p.facts.Decode, c.Decode)
	}
}

// heldBy is what a rank has, with what the store has that its engine's ranks share.
func heldBy(held map[rankName]holding, c *fleet.Candidate) holding {
	h := held[rankName{c.Name, c.Rank}]
	shared := held[rankName{c.Name, -1}]
	return holding{local: max(h.local, shared.local), stored: max(h.stored, shared.stored), state: max(h.state, shared.state), known: h.known || shared.known}
}

// slow leaves those out of the facts, where one engine does both, that would decode the
// request too slowly, so that it goes where both objectives hold, if it can. none: all
// would, and all are left in.
func (p *placer) slow(q *scheduler.Request, prefillers, decoders []int) (left, busy []int, none bool) {
	early := p.config.Scheduler.Admission != scheduler.AdmitAll && p.config.Scheduler.Admission != scheduler.AdmitBaseline
	if decoders != nil || !early || q.TBT == 0 {
		return prefillers, nil, false
	}
	var facts []scheduler.Prefiller
	for at, i := range prefillers {
		one := []scheduler.Decoder{p.candidates[i].Decode}
		if _, tbt := p.scheduler.Decoder(q, one); p.scheduler.AdmitDecode(q, tbt) != scheduler.Accepted {
			busy = append(busy, i)
			continue
		}
		left, facts = append(left, i), append(facts, p.facts.Prefill[at])
	}
	if len(left) == 0 {
		return prefillers, nil, true
	}
	p.facts.Prefill = append(p.facts.Prefill[:0], facts...)
	return left, busy, false
}

// begin counts the request in.
func (p *placer) begin(ctx context.Context, r *request, d *scheduler.Decision, out *placed) {
	load := fleet.Load{Tokens: r.count, CachedTokens: r.cached(d.Term.CachedBlocks), Prefill: true, Decode: !out.apart, Work: d.Term.Work, First: d.Term.TTFT, Blind: !r.streamed && !out.apart}
	if !out.apart {
		out.ctx, out.flight = p.fleet.Begin(ctx, out.prefill, load)
		return
	}
	out.prefillCtx, out.prefillFlight = p.fleet.Begin(ctx, out.prefill, load)
	out.ctx, out.flight = p.fleet.Begin(ctx, out.decode, fleet.Load{Tokens: r.count, CachedTokens: r.count, Decode: true})
}

// redecide is the second check, when the prefill is done: the decode side as it is now,
// without the request itself.
func (p *placer) redecide(ctx context.Context, r *request, out *placed, not []int) (ok bool, tbt time.Duration, none nobody) {
	out.flight.End()
	now := time.Now()
	held := p.catalog.holdings(r, now)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.among(r.model, &choice{not: not})
	_, decoders := p.sides()
	if decoders == nil {
		for i := range p.candidates {
			decoders = append(decoders, i)
		}
	}
	if len(decoders) == 0 {
		return false, 0, noneInUse
	}
	p.gather(r, held, nil, nil, decoders, now)
	q := scheduler.Request{Tokens: r.count, Blocks: r.count, BlockTokens: 1, TTFT: r.ttft, TBT: r.tbt}
	i, tbt := p.scheduler.Decoder(&q, p.facts.Decode)
	if p.scheduler.AdmitDecode(&q, tbt) != scheduler.Accepted {
		return false, tbt, somebody
	}
	out.decode = p.candidates[decoders[i]].Target
	out.ctx, out.flight = p.fleet.Begin(ctx, out.decode, fleet.Load{Tokens: r.count, CachedTokens: r.count, Decode: true})
	return true, tbt, somebody
}

// priority is the one that an engine is given: what the client wants counts most, and
// among equals the scheduler's order. In milliseconds since the router began.
func (p *placer) priority(r *request, work time.Duration, now time.Time) int {
	const span = 1 << 36 // two years
	return r.wishes.priority*span + int(p.scheduler.Priority(now.Sub(p.began), work).Milliseconds())
}

// explain writes a decision down.
func (p *placer) explain(r *request, d *scheduler.Decision, held map[rankName]holding, prefillers, decoders []int, now time.Time) *Decision {
	made := &Decision{
		At: now, Path: r.path, Model: shortened(r.model), Tenant: r.tenant, Policy: p.config.Policy, Tokens: r.count, Known: r.tokens != nil, Unknown: r.why,
		TTFT: r.ttft.Seconds(), TBT: r.tbt.Seconds(), Expected: d.Term.TTFT.Seconds(), ExpectedTBT: d.TBT.Seconds(), CachedTokens: r.cached(d.Term.CachedBlocks),
		Candidates: make([]Candidate, 0, len(d.Terms)),
	}
	for at, t := range d.Terms {
		c := &p.candidates[prefillers[at]]
		h := heldBy(held, c)
		v := Candidate{
			Engine: c.Name, Rank: c.Rank, LocalTokens: c.Prefill.LocalBlocks, StoredTokens: h.stored, CachedTokens: r.cached(t.CachedBlocks),
			Transfer: t.Transfer.Seconds(), Queue: t.Queue.Seconds(), Prefill: t.Prefill.Seconds(), TTFT: t.TTFT.Seconds(), Objective: t.Objective.Seconds(),
			TBT: p.fleet.Costs().Iteration(c.Decode.Sequences+1, c.Decode.ContextTokens+int64(r.count)).Seconds() * c.Decode.Slowness, Sequences: c.Decode.Sequences,
			Chosen: at == d.Prefill,
		}
		if t.Source != scheduler.Nobody {
			v.Source = p.candidates[prefillers[t.Source]].Name
		}
		if h.known {
			v.Index = h.state.String()
		} else if len(held) > 0 {
			v.Index = contract.Connecting.String()
		}
		made.Candidates = append(made.Candidates, v)
	}
	if d.Prefill != scheduler.Nobody {
		c := &p.candidates[prefillers[d.Prefill]]
		made.Prefill, made.PrefillRank, made.Decode, made.DecodeRank = c.Name, c.Rank, c.Name, c.Rank
		if made.ExpectedTBT == 0 {
			made.ExpectedTBT = made.Candidates[d.Prefill].TBT
		}
	}
	if d.Decode != scheduler.Nobody {
		c := &p.candidates[decoders[d.Decode]]
		made.Decode, made.DecodeRank = c.Name, c.Rank
	}
	if d.Refused != scheduler.Accepted {
		made.Refused = d.Refused.String()
	}
	return made
}

// shortened returns a name that is kept, in memory of its own.
func shortened(name string) string { return strings.Clone(name[:min(len(name), maxName)]) }

// explainBusy adds those that were left out because they are busy.
func (p *placer) explainBusy(made *Decision, r *request, held map[rankName]holding, busy []int) {
	for _, i := range busy {
		c := &p.candidates[i]
		made.Candidates = append(made.Candidates, Candidate{
			Engine: c.Name, Rank: c.Rank, LocalTokens: c.Prefill.LocalBlocks, StoredTokens: heldBy(held, c).stored, Busy: true, Sequences: c.Decode.Sequences,
			TBT: p.fleet.Costs().Iteration(c.Decode.Sequences+1, c.Decode.ContextTokens+int64(r.count)).Seconds() * c.Decode.Slowness,
		})
	}
}
