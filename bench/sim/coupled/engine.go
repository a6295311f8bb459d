package coupled

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/node"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// job is a request on its engine.
type job struct {
	request *workload.Request
	arrived time.Duration
	// cached and done are tokens of the prompt that need no computing (any more).
	cached, done int
	hitBlocks    int
	first        time.Duration
	context      int
	left         int
	started      int // tokens of the engine before this job's second
	finish       func(*job, []time.Duration)
}

// engine is a node.
type engine struct {
	config  *Config
	queue   *event.Queue
	cache   *node.Cache // nil without
	waiting []*job
	running []*job
	context int64
	planned int64
	busy    bool
	// ends are when the decode iterations ended since base of them.
	ends []time.Duration
	base int
	gaps []time.Duration
}

func (e *engine) load() int { return len(e.waiting) + len(e.running) }

func (e *engine) take(j *job) {
	e.waiting = append(e.waiting, j)
	if !e.busy {
		e.next()
	}
}

// fits tells whether the first waiting prompt has memory.
func (e *engine) fits() bool {
	if len(e.waiting) == 0 {
		return false
	}
	r := e.waiting[0].request
	return len(e.running) == 0 || e.planned+int64(r.InputTokens+r.OutputTokens) <= e.config.Costs.KVTokens()
}

// next begins what is to be done now.
func (e *engine) next() {
	prompt := e.fits()
	switch {
	case prompt && e.config.Discipline == Chunked:
		e.mixed()
	case prompt && (e.config.Discipline == PrefillFirst || len(e.running) == 0):
		e.prefill()
	case len(e.running) > 0:
		e.after(e.config.Costs.Iteration(len(e.running), e.context), e.decoded)
	default:
		e.busy = false
		e.base += len(e.ends)
		e.ends = e.ends[:0]
		return
	}
	e.busy = true
}

func (e *engine) after(seconds float64, then func()) {
	e.queue.At(e.queue.Now()+model.Duration(seconds), func() {
		then()
		e.next()
	})
}

// start looks the first waiting prompt up.
func (e *engine) start(j *job) {
	if e.cache == nil || j.done > 0 {
		return
	}
	_, j.hitBlocks = e.cache.Leading(j.request.Blocks, e.queue.Now())
	j.cached = min(j.hitBlocks*workload.BlockTokens, j.request.InputTokens-1)
	j.done = j.cached
}

// prefill computes a prompt while the others wait. DecodeFirst takes all that fit
// as one batch.
func (e *engine) prefill() {
	seconds, n := 0.0, 0
	for planned := e.planned; n < len(e.waiting); n++ {
		j := e.waiting[n]
		planned += int64(j.request.InputTokens + j.request.OutputTokens)
		if n > 0 && (e.config.Discipline == PrefillFirst || planned > e.config.Costs.KVTokens()) {
			break
		}
		e.start(j)
		seconds += e.config.Costs.GPU(j.request.InputTokens, j.cached)
	}
	e.after(seconds, func() {
		batch := e.waiting[:n]
		e.waiting = e.waiting[n:]
		for _, j := range batch {
			e.prefilled(j)
		}
	})
}

// mixed decodes one token and computes a chunk of the first prompt.
func (e *engine) mixed() {
	j := e.waiting[0]
	e.start(j)
	upTo := min(j.done+e.config.ChunkTokens, j.request.InputTokens)
	seconds := e.config.Costs.GPU(upTo, j.done)
	if len(e.running) > 0 {
		seconds += e.config.Costs.Iteration(len(e.running), e.context)
	}
	e.after(seconds, func() {
		j.done = upTo
		e.decoded()
		if j.done == j.request.InputTokens {
			e.waiting = e.waiting[1:]
			e.prefilled(j)
		}
	})
}

// prefilled has a prompt's first token.
func (e *engine) prefilled(j *job) {
	now := e.queue.Now()
	j.first = now
	if e.cache != nil {
		e.cache.Insert(j.request.Blocks, 0, now, now)
	}
	j.context, j.left = j.request.InputTokens+1, j.request.OutputTokens-1
	if j.left <= 0 {
		j.finish(j, nil)
		return
	}
	j.started = e.base + len(e.ends)
	e.running = append(e.running, j)
	e.context += int64(j.context)
	e.planned += int64(j.context + j.left)
}

// decoded ends an iteration: every running request has a token more.
func (e *engine) decoded() {
	if len(e.running) == 0 {
		return
	}
	e.ends = append(e.ends, e.queue.Now())
	e.context += int64(len(e.running))
	keep := e.running[:0]
	for _, j := range e.running {
		j.context++
		if j.left--; j.left > 0 {
			keep = append(keep, j)
			continue
		}
		e.context -= int64(j.context)
		e.planned -= int64(j.context)
		j.finish(j, e.gapsOf(j))
	}
	clear(e.running[len(keep):])
	e.running = keep
}

func (e *engine) gapsOf(j *job) []time.Duration {
	e.gaps = e.gaps[:0]
	last := j.first
	for _, end := range e.ends[j.started-e.base:] {
		e.gaps = append(e.gaps, end-last)
		last = end
	}
	return e.gaps
}
