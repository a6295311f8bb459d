package cluster

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/network"
	"github.com/mooncake-sidecar/sidecar/bench/sim/node"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// streams of the seeded generator, so that what one draws does not change what
// the other does.
const (
	streamScheduler = 1
	streamEstimates = 2
)

// cluster is a run's state.
type cluster struct {
	config      Config
	queue       event.Queue
	links       *network.Network
	scheduler   *scheduler.Scheduler
	replication *scheduler.Replication
	noise       *rand.Rand
	prefill     []prefiller
	decode      []decoder
	facts       scheduler.Facts
	work        *workload.Workload
	result      Result
	// arrived requests are those that were decided on.
	arrived int
}

type prefiller struct {
	cache *node.Cache
	free  time.Duration
	// firsts are when the outstanding prompts get their first token.
	firsts []time.Duration
	// busy are spans of GPU time that have not passed, for samples.
	busy []span
	// jobs wait, and running is until when one runs, where a node orders its prompts.
	jobs    []*job
	running bool
}

type decoder struct {
	*node.Batch
	cache *node.Cache // nil without
	// incoming requests were placed and are still being handed over. Who did not
	// count them would send all to the same node.
	incoming       int
	incomingTokens int64
}

type span struct{ begin, end time.Duration }

// Run simulates a workload from its first arrival until everything is done.
func Run(ctx context.Context, config Config, work *workload.Workload) (*Result, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	c := &cluster{
		config: config, work: work, links: network.New(config.Prefill+config.Decode, config.Costs.LinkBytesPerSecond),
		replication: scheduler.NewReplication(config.Replication), noise: rand.New(rand.NewPCG(config.Seed, streamEstimates)),
	}
	s, err := scheduler.New(config.Scheduler, &estimates{c}, rand.New(rand.NewPCG(config.Seed, streamScheduler)))
	if err != nil {
		return nil, err
	}
	c.scheduler = s
	c.result.Outcomes = make([]Outcome, len(work.Requests))
	var pool *node.Cache
	for range config.Prefill {
		if pool == nil || !config.Pooled {
			if pool, err = node.NewCache(config.Policy, config.roomBlocks()); err != nil {
				return nil, err
			}
		}
		c.prefill = append(c.prefill, prefiller{cache: pool})
	}
	for range config.Decode {
		d := decoder{Batch: node.NewBatch(&c.queue, &c.config.Costs, config.Costs.KVTokens())}
		if config.DecodeBlocks > 0 {
			if d.cache, err = node.NewCache(config.Policy, config.DecodeBlocks); err != nil {
				return nil, err
			}
		}
		c.decode = append(c.decode, d)
	}
	c.facts = scheduler.Facts{Prefill: make([]scheduler.Prefiller, config.Prefill), Decode: make([]scheduler.Decoder, config.Decode), Forecast: &forecast{c}}
	c.arrive(0)
	if config.Sample > 0 {
		c.queue.At(0, c.sample)
	}
	for c.queue.Step() {
		if c.result.Events++; c.result.Events%(1<<16) == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	c.result.Ended = c.queue.Now()
	return &c.result, nil
}

// arrive has the next request come.
func (c *cluster) arrive(i int) {
	if i == len(c.work.Requests) {
		return
	}
	c.queue.At(c.work.Requests[i].Arrival, func() {
		c.arrived++
		c.place(i)
		c.arrive(i + 1)
	})
}

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

// sample looks at the load until all is done.
func (c *cluster) sample() {
	now := c.queue.Now()
	busy := 0
	for i := range c.prefill {
		p := &c.prefill[i]
		n := 0
		for n < len(p.busy) && p.busy[n].end <= now {
			n++
		}
		p.busy = p.busy[n:]
		if len(p.busy) > 0 && p.busy[0].begin <= now {
			busy++
		}
	}
	load := 0.0
	for i := range c.decode {
		load += c.config.Costs.Iteration(c.decode[i].load())
	}
	if len(c.decode) > 0 {
		load /= float64(len(c.decode))
	}
	c.result.Samples = append(c.result.Samples, Sample{float64(busy) / float64(len(c.prefill)), load})
	// Behind the last arrival both sides run empty, which is no property of a policy.
	if c.arrived < len(c.work.Requests) {
		c.queue.At(now+c.config.Sample, c.sample)
	}
}
