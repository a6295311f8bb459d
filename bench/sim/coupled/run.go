package coupled

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/node"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// Run simulates a workload; the result has the form of a disaggregated cluster's.
func Run(ctx context.Context, config Config, work *workload.Workload) (*cluster.Result, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	var queue event.Queue
	engines := make([]*engine, config.Nodes)
	for i := range engines {
		engines[i] = &engine{config: &config, queue: &queue}
		if config.CacheBlocks > 0 {
			cache, err := node.NewCache(policy, config.CacheBlocks)
			if err != nil {
				return nil, err
			}
			engines[i].cache = cache
		}
	}
	result := &cluster.Result{Outcomes: make([]cluster.Outcome, len(work.Requests))}
	var arrive func(i int)
	arrive = func(i int) {
		if i == len(work.Requests) {
			return
		}
		r := &work.Requests[i]
		queue.At(r.Arrival, func() {
			least := engines[0]
			for _, e := range engines[1:] {
				if e.load() < least.load() {
					least = e
				}
			}
			least.take(&job{request: r, arrived: queue.Now(), finish: func(j *job, gaps []time.Duration) {
				result.Outcomes[i] = config.outcome(j, gaps, queue.Now())
			}})
			arrive(i + 1)
		})
	}
	arrive(0)
	for queue.Step() {
		if result.Events++; result.Events%(1<<16) == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	result.Ended = queue.Now()
	return result, nil
}

func (c *Config) outcome(j *job, gaps []time.Duration, now time.Duration) cluster.Outcome {
	o := cluster.Outcome{
		InputTokens: j.request.InputTokens, OutputTokens: j.request.OutputTokens, Blocks: len(j.request.Blocks), HitBlocks: j.hitBlocks,
		Arrival: j.arrived, TTFT: j.first - j.arrived, GPU: model.Duration(c.Costs.GPU(j.request.InputTokens, j.cached)), Finished: now,
	}
	o.Queue = max(o.TTFT-o.GPU, 0)
	o.TBT, o.MeanTBT = cluster.Slowest(gaps)
	return o
}
