package cluster

import (
	"math"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// never is when blocks are ready whose prompt has not begun.
const never = time.Duration(math.MaxInt64)

// job is a prompt that waits on a node that orders its prompts.
type job struct {
	request int
	fetched time.Duration
	work    time.Duration
	// key is the order: the least goes first.
	key time.Duration
}

// enqueue puts request i into its node's queue.
func (c *cluster) enqueue(i int, d *scheduler.Decision, fetched time.Duration) {
	p, w := &c.prefill[d.Prefill], &c.work.Requests[i]
	j := &job{request: i, fetched: fetched, work: d.Term.Work, key: c.scheduler.Priority(c.queue.Now(), d.Term.Work)}
	at, _ := slices.BinarySearchFunc(p.jobs, j.key, func(o *job, key time.Duration) int {
		if o.key <= key { // behind its equals
			return -1
		}
		return 1
	})
	p.jobs = slices.Insert(p.jobs, at, j)
	p.cache.Insert(w.Blocks, d.Term.CachedBlocks, fetched, never)
	if !p.running {
		c.serve(d.Prefill)
	}
}

// serve begins the next prompt of a node, unless there is none. How much of its
// prefix is cached shows only now.
func (c *cluster) serve(at int) {
	p := &c.prefill[at]
	p.running = len(p.jobs) > 0
	if !p.running {
		return
	}
	j := p.jobs[0]
	p.jobs = slices.Delete(p.jobs, 0, 1)
	start := max(c.queue.Now(), j.fetched)
	w := &c.work.Requests[j.request]
	_, ready := p.cache.Leading(w.Blocks, start)
	first := c.run(j.request, at, start, ready)
	p.cache.Insert(w.Blocks, ready, start, first)
	c.queue.At(p.free, func() { c.serve(at) })
}

// waits is how long a prompt of so much work would wait on a node: for the one
// that runs, and for those that go before it.
func (c *cluster) waits(p *prefiller, w *workload.Request, local int) time.Duration {
	cached := min(local*workload.BlockTokens, w.InputTokens-1)
	key := c.scheduler.Priority(c.queue.Now(), model.Duration(c.config.Costs.GPU(w.InputTokens, cached)))
	wait := max(p.free-c.queue.Now(), 0)
	for _, j := range p.jobs {
		if j.key > key {
			break
		}
		wait += j.work
	}
	return wait
}
