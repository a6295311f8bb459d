package cluster

import (
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// look fills in the facts as request i finds them.
func (c *cluster) look(w *workload.Request) {
	now := c.queue.Now()
	var local, ready int
	for i := range c.prefill {
		p := &c.prefill[i]
		if i == 0 || !c.config.Pooled {
			local, ready = p.cache.Leading(w.Blocks, now)
		}
		p.pass(now)
		c.facts.Prefill[i] = scheduler.Prefiller{
			LocalBlocks: local, ReadyBlocks: ready, Queue: max(p.free-now, 0), Outstanding: len(p.firsts) + len(p.jobs),
			Egress: c.links.OutWait(now, i), Ingress: c.links.InWait(now, i),
		}
		if c.config.Scheduler.Patience > 0 {
			c.facts.Prefill[i].Queue = c.waits(p, w, local)
		}
		if c.config.Pooled {
			// What another node computes can't be read before it is ready.
			c.facts.Prefill[i].LocalBlocks = ready
		}
	}
	c.lookDecode(w)
}

func (c *cluster) lookDecode(w *workload.Request) {
	for i := range c.decode {
		d := &c.decode[i]
		n, tokens := d.load()
		cached := 0
		if d.cache != nil {
			cached, _ = d.cache.Leading(w.Blocks, c.queue.Now())
		}
		c.facts.Decode[i] = scheduler.Decoder{Sequences: n, ContextTokens: tokens, CachedBlocks: cached}
	}
}

// load is what a decode node has and will have.
func (d *decoder) load() (sequences int, contextTokens int64) {
	sequences, contextTokens = d.Load()
	return sequences + d.incoming, contextTokens + d.incomingTokens
}

// pass forgets what is over.
func (p *prefiller) pass(now time.Duration) {
	p.firsts = slices.DeleteFunc(p.firsts, func(first time.Duration) bool { return first <= now })
}
