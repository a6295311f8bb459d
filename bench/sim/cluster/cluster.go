package cluster

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
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
