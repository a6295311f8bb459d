package router

import (
	"context"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// ErrNoStore: an engine has no store that can be told what to keep.
var ErrNoStore = errors.New("no store")

// copyOrder is a prefix that is worth having in one more place.
type copyOrder struct {
	to      fleet.Target
	request *request
	tokens  []byte
}

// hot notes that a prefix was used, and may say to copy it.
func (p *placer) hot(r *request, prefillers []int, now time.Time) *copyOrder {
	if p.config.Replication.Uses <= 0 || r.tokens == nil || !r.whole {
		return nil
	}
	// The longest prefix that anybody has is what is asked for often.
	longest := 0
	for i := range p.facts.Prefill {
		longest = max(longest, p.facts.Prefill[i].LocalBlocks)
	}
	longest = longest / historyTokens * historyTokens
	if longest == 0 {
		return nil
	}
	facts := p.facts.Prefill
	for i := range facts {
		facts[i].LocalBlocks = facts[i].LocalBlocks / historyTokens * historyTokens
		facts[i].ReadyBlocks = facts[i].LocalBlocks // a copy is computed, if it can't be fetched
	}
	key := r.hashes[longest/historyTokens-1]
	order, ok := p.replication.Used(now.Sub(p.began), key, longest, facts)
	if !ok {
		return nil
	}
	return &copyOrder{to: p.candidates[prefillers[order.Target]].Target, request: r, tokens: r.tokens[:order.Blocks*tokenBytes]}
}

// copies carries out what replication asks for, one after the other: it is work that
// nobody waits for.
func (r *Router) copies(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-r.orders:
			r.carryOut(ctx, o)
		}
	}
}

// order has a copy made, if there are not too many to be made.
func (r *Router) order(o *copyOrder) {
	if o == nil {
		return
	}
	select {
	case r.orders <- o:
	default:
		r.counts.copiesDropped.Add(1)
	}
}

// pinnedCopy is for how long a store keeps a copy at least.
const pinnedCopy = 10 * time.Minute

func (r *Router) carryOut(ctx context.Context, o *copyOrder) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	e := r.fleet.Engine(o.to.Engine)
	prefix := r.prefixOf(o.request, o.tokens)
	err := ErrNoStore
	if r.stores != nil {
		if err = r.stores.Prefetch(ctx, e.Name, prefix); err == nil {
			_, err = r.pin(ctx, e.Name, o.request, o.tokens, time.Now().Add(pinnedCopy))
		}
	}
	if errors.Is(err, ErrNoStore) {
		n := len(o.tokens) / tokenBytes
		work := r.fleet.Costs().Work(n, 0)
		counted, flight := r.fleet.Begin(ctx, o.to, fleet.Load{Tokens: n, Prefill: true, Work: work, First: work, Blind: true})
		defer flight.End()
		err = r.warm(counted, o.to, o.request, o.tokens, nil)
	}
	if err != nil {
		r.counts.copiesFailed.Add(1)
		r.log.Info("a prefix was not copied", "engine", e.Name, "tokens", len(o.tokens)/tokenBytes, "error", err)
		return
	}
	r.counts.copies.Add(1)
	r.log.Info("a prefix was copied", "engine", e.Name, "tokens", len(o.tokens)/tokenBytes)
}

// prefixOf is what stores are told of a prefix.
func (r *Router) prefixOf(q *request, tokens []byte) *Prefix {
	p := &Prefix{Model: q.base, LoRA: q.lora, CacheSalt: q.salt, Tokens: tokens}
	for _, name := range q.names() {
		for _, f := range r.placer.catalog.services(time.Now()).forms[name] {
			p.BlockTokens = max(p.BlockTokens, f.blockTokens)
		}
	}
	return p
}
