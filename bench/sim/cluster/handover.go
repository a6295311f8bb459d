package cluster

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/node"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// handOver has the first token of request i, which node computed.
func (c *cluster) handOver(i, from int) {
	w := &c.work.Requests[i]
	o := &c.result.Outcomes[i]
	now := c.queue.Now()
	if len(c.decode) == 0 {
		o.TTFT = now - o.Arrival
		c.finish(o)
		return
	}
	c.lookDecode(w)
	r := c.request(w)
	d, expected := c.scheduler.Decoder(&r, c.facts.Decode)
	if c.scheduler.AdmitDecode(&r, expected) != scheduler.Accepted {
		o.Fate = RefusedLate
		o.TTFT = now - o.Arrival
		c.finish(o)
		return
	}
	missing := max(w.InputTokens-c.facts.Decode[d].CachedBlocks*workload.BlockTokens, 0)
	c.result.HandoverBytes += c.bytes(missing)
	c.result.SavedHandoverBytes += c.bytes(w.InputTokens - missing)
	if cache := c.decode[d].cache; cache != nil {
		cache.Insert(w.Blocks, 0, now, now)
	}
	if !c.config.SerialHandover {
		c.join(i, d)
		return
	}
	there := c.links.Send(now, from, c.config.Prefill+d, c.bytes(missing))
	o.Handover = there - now
	to := &c.decode[d]
	to.incoming++
	to.incomingTokens += int64(w.InputTokens)
	c.queue.At(there, func() {
		to.incoming--
		to.incomingTokens -= int64(w.InputTokens)
		c.join(i, d)
	})
}

// join has request i decode on node d.
func (c *cluster) join(i, d int) {
	w := &c.work.Requests[i]
	o := &c.result.Outcomes[i]
	o.TTFT = c.queue.Now() - o.Arrival
	c.decode[d].Join(&node.Sequence{ContextTokens: w.InputTokens + 1, LeftTokens: w.OutputTokens - 1, Done: func(gaps []time.Duration) {
		o.TBT, o.MeanTBT = Slowest(gaps)
		c.finish(o)
	}})
}

func (c *cluster) finish(o *Outcome) {
	o.Finished = c.queue.Now()
}
