package cluster

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

func (c *cluster) request(w *workload.Request) scheduler.Request {
	return scheduler.Request{Tokens: w.InputTokens, Blocks: len(w.Blocks), BlockTokens: workload.BlockTokens, TTFT: c.config.TTFT, TBT: c.config.TBT}
}

// place decides on request i and carries the decision out.
func (c *cluster) place(i int) {
	w := &c.work.Requests[i]
	now := c.queue.Now()
	c.look(w)
	r := c.request(w)
	d := c.scheduler.Decide(&r, &c.facts)
	o := &c.result.Outcomes[i]
	*o = Outcome{InputTokens: w.InputTokens, OutputTokens: w.OutputTokens, Blocks: len(w.Blocks), Arrival: now}
	if d.Refused != scheduler.Accepted {
		o.Fate = fateOf(d.Refused)
		c.finish(o)
		return
	}
	fetched := c.fetch(w, &d, o)
	if c.config.Scheduler.Patience > 0 {
		c.enqueue(i, &d, fetched)
	} else {
		c.commit(i, &d, fetched)
	}
	c.replicate(w)
}

// fetch has the missing part of the prefix sent, and returns when it is there.
func (c *cluster) fetch(w *workload.Request, d *scheduler.Decision, o *Outcome) time.Duration {
	now, t := c.queue.Now(), &d.Term
	if t.Source == scheduler.Nobody {
		return now
	}
	missing := t.CachedBlocks - c.facts.Prefill[d.Prefill].LocalBlocks
	bytes := c.bytes(missing * workload.BlockTokens)
	fetched := c.links.Send(now, t.Source, d.Prefill, bytes)
	c.result.Transfers++
	c.result.TransferBytes += bytes
	o.Transferred, o.Transfer = true, fetched-now
	c.prefill[t.Source].cache.Touch(w.Blocks[:t.CachedBlocks]) // its copy was used
	return fetched
}

// commit fixes when request i runs: behind all that its node has.
func (c *cluster) commit(i int, d *scheduler.Decision, fetched time.Duration) {
	p := &c.prefill[d.Prefill]
	first := c.run(i, d.Prefill, max(p.free, fetched), d.Term.CachedBlocks)
	p.cache.Insert(c.work.Requests[i].Blocks, d.Term.CachedBlocks, fetched, first)
}

// run has request i computed on a node from start on, with so many blocks cached,
// and returns when its first token comes.
func (c *cluster) run(i, at int, start time.Duration, cachedBlocks int) time.Duration {
	w, o, p := &c.work.Requests[i], &c.result.Outcomes[i], &c.prefill[at]
	cached := min(cachedBlocks*workload.BlockTokens, w.InputTokens-1)
	o.HitBlocks = cachedBlocks
	o.Queue = start - o.Arrival
	o.GPU = model.Duration(c.config.Costs.GPU(w.InputTokens, cached))
	p.free = start + o.GPU
	first := start + model.Duration(c.config.Costs.Latency(w.InputTokens, cached))
	p.firsts = append(p.firsts, first)
	if c.config.Sample > 0 {
		p.busy = append(p.busy, span{start, p.free})
	}
	c.queue.At(first, func() { c.handOver(i, at) })
	return first
}

func (c *cluster) bytes(tokens int) int64 {
	return int64(tokens) * c.config.Costs.Shape.KVBytesPerToken()
}

// replicate lets hot prefixes spread.
func (c *cluster) replicate(w *workload.Request) {
	if c.config.Replication.Uses <= 0 {
		return
	}
	best := 0
	for i := range c.facts.Prefill {
		best = max(best, c.facts.Prefill[i].ReadyBlocks)
	}
	if best == 0 {
		return
	}
	now := c.queue.Now()
	copied, worth := c.replication.Used(now, w.Blocks[best-1], best, c.facts.Prefill)
	if !worth {
		return
	}
	missing := copied.Blocks - c.facts.Prefill[copied.Target].LocalBlocks
	bytes := c.bytes(missing * workload.BlockTokens)
	at := c.links.Send(now, copied.Source, copied.Target, bytes)
	c.result.TransferBytes += bytes
	c.prefill[copied.Target].cache.Insert(w.Blocks[:copied.Blocks], copied.Blocks, at, at)
	c.result.Replicas++
}
