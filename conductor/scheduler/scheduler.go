package scheduler

import (
	"math/rand/v2"
	"time"
)

// Scheduler decides. Its memory is that of the terms of the last decision.
type Scheduler struct {
	options Options
	costs   Costs
	random  *rand.Rand
	terms   []Term
}

// New returns a scheduler that draws, where a strategy does, from random.
func New(options Options, costs Costs, random *rand.Rand) (*Scheduler, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{options: options, costs: costs, random: random}, nil
}

// Decide places a request. Without a prefill instance it is refused.
func (s *Scheduler) Decide(r *Request, f *Facts) Decision {
	if len(f.Prefill) == 0 {
		return Decision{Refused: NoPrefiller, Prefill: Nobody, Decode: Nobody}
	}
	s.estimate(r, f)
	p := s.choose(f)
	d := Decision{Prefill: p, Decode: Nobody, Term: s.terms[p], Terms: s.terms}
	if len(f.Decode) > 0 {
		d.Decode, d.TBT = s.Decoder(r, f.Decode)
	}
	d.Refused = s.admit(r, f, &d)
	return d
}

// Priority is a prompt's place in its instance's queue: the least goes first. An
// engine that orders its queue by priority takes it as such. now is any clock that
// all requests share.
func (s *Scheduler) Priority(now, work time.Duration) time.Duration {
	return now + time.Duration(s.options.Patience*float64(work))
}

// estimate fills in the terms.
func (s *Scheduler) estimate(r *Request, f *Facts) {
	s.terms = s.terms[:0]
	weight := s.options.WorkWeight
	if s.options.WorkBacklog > 0 {
		weight += float64(meanQueue(f.Prefill)) / float64(s.options.WorkBacklog)
	}
	for i := range f.Prefill {
		t := s.term(r, f.Prefill, i)
		t.TTFT = t.Transfer + t.Queue + t.Prefill
		t.Objective = t.TTFT + time.Duration(weight*float64(t.Work))
		s.terms = append(s.terms, t)
	}
}

func meanQueue(all []Prefiller) time.Duration {
	var sum time.Duration
	for i := range all {
		sum += all[i].queue()
	}
	return sum / time.Duration(len(all))
}

// term is what instance i would cost, by what it has, or with what it fetches.
func (s *Scheduler) term(r *Request, all []Prefiller, i int) Term {
	own := s.priced(r, &all[i], all[i].LocalBlocks)
	if s.options.Strategy != KVCacheCentric {
		return own
	}
	source := bestSource(all, i)
	if source == Nobody {
		return own
	}
	best, local := all[source].ReadyBlocks, all[i].LocalBlocks
	if best <= local {
		return own
	}
	fetched := s.priced(r, &all[i], best)
	wait := max(all[source].egress(), all[i].ingress())
	fetched.Source = source
	fetched.Transfer = wait + s.costs.Transfer((best-local)*r.BlockTokens)
	var fetch bool
	switch s.options.Balance {
	case ByThreshold:
		fetch = longer(best, local, s.options.Threshold)
	case ByLinks:
		fetch = longer(best, local, s.options.Threshold*(1+float64(wait)/float64(s.options.LinkWait)))
	case ByCost:
		fetch = fetched.Transfer+fetched.Prefill < own.Prefill
	}
	if fetch {
		return fetched
	}
	return own
}

// longer tells whether a prefix is more than threshold times as long as the local
// one; any is if there is none.
func longer(best, local int, threshold float64) bool {
	return local == 0 || float64(best) > threshold*float64(local)
}

func (s *Scheduler) priced(r *Request, p *Prefiller, blocks int) Term {
	cached := r.cached(blocks)
	return Term{
		CachedBlocks: blocks, Source: Nobody, Queue: p.queue(),
		Prefill: slowed(s.costs.Prefill(r.Tokens, cached), p.Slowness), Work: slowed(s.costs.Work(r.Tokens, cached), p.Slowness),
	}
}

// bestSource is the instance from which the longest prefix can be fetched to i:
// the first of those with the longest whose link is free soonest, Nobody if i
// itself has it or nobody has any.
func bestSource(all []Prefiller, i int) int {
	source := Nobody
	for j := range all {
		switch {
		case all[j].ReadyBlocks <= 0:
		case source == Nobody, all[j].ReadyBlocks > all[source].ReadyBlocks,
			all[j].ReadyBlocks == all[source].ReadyBlocks && all[j].egress() < all[source].egress():
			source = j
		}
	}
	if source == i {
		return Nobody
	}
	return source
}

// choose takes an instance by the strategy.
func (s *Scheduler) choose(f *Facts) int {
	switch s.options.Strategy {
	case Random:
		return s.random.IntN(len(f.Prefill))
	case LoadBalancing:
		return s.fewest(f.Prefill)
	}
	best := 0
	for i := range s.terms {
		if s.terms[i].Objective < s.terms[best].Objective {
			best = i
		}
	}
	return best
}

// fewest is the instance with the fewest outstanding prompts, any of several.
func (s *Scheduler) fewest(all []Prefiller) int {
	best, ties := 0, 0
	for i := range all {
		switch {
		case all[i].Outstanding < all[best].Outstanding:
			best, ties = i, 1
		case all[i].Outstanding == all[best].Outstanding:
			if ties++; s.random.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}
