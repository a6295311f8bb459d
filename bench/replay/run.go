package replay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/pause"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/expect"
	"github.com/mooncake-sidecar/sidecar/bench/replay/prompt"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// giveUp is how many requests in a row may find nobody before the replay ends.
const giveUp = 20

// reportInterval is how often Progress is told.
const reportInterval = time.Second

// ErrGone: the server can't be reached any more.
var ErrGone = errors.New("the server is gone")

// Asker sends one request; client.Client is one.
type Asker interface {
	Body(prompt []uint32, output int) []byte
	Complete(ctx context.Context, body []byte, prompt, output int, token func(n int)) (client.Answer, error)
}

// Progress of a replay.
type Progress struct {
	// Requests in all; Sent, Done (Failed included) and Failed so far.
	Requests, Sent, Done, Failed int
	Elapsed                      time.Duration
	// TTFT so far.
	P50, P99 time.Duration
}

// Result of a replay.
type Result struct {
	Outcomes []record.Outcome
	Summary  *record.Summary
	Skipped  []Skipped
	// NotSent is how many requests were left when the replay ended early.
	NotSent int
	// InOrder is how many tokens must be cached of all requests, one at a time.
	InOrder int64
	// Ended says why the replay ended early; nil if it did not.
	Ended error
}

// run is a replay under way.
type run struct {
	options *Options
	asker   Asker
	begin   time.Time
	stop    context.CancelCauseFunc

	mu struct {
		sync.Mutex
		recorder    *record.Recorder
		progress    Progress
		unreachable int // in a row
		// answered are requests whose times the expectation is computed from, with the
		// place of each outcome's line.
		answered []expect.Sent
		lines    []int
	}
}

// Run replays requests, in order, and returns when all were answered or failed.
// progress is told how far it is, each second and at the end, from one goroutine at
// a time.
func Run(ctx context.Context, options *Options, requests []trace.Numbered, maker *prompt.Maker, asker Asker, progress func(Progress)) (*Result, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	jobs, skipped := options.plan(requests)
	result := &Result{Skipped: skipped}
	for i := range jobs {
		result.InOrder += int64(jobs[i].inOrder)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &run{options: options, asker: asker, begin: time.Now(), stop: stop}
	r.mu.recorder = record.NewRecorder(options.SLO)
	r.mu.progress.Requests = len(jobs)

	encoded := make(chan *job, ahead)
	var helpers sync.WaitGroup
	helpers.Go(func() { encode(ctx, jobs, maker, asker, encoded) })
	telling, hush := context.WithCancel(context.WithoutCancel(ctx))
	helpers.Go(func() { r.tell(telling, progress) })
	sent := r.send(ctx, encoded)
	result.NotSent, result.Ended = len(jobs)-sent, context.Cause(ctx)
	stop(nil)
	hush()
	helpers.Wait()
	progress(r.snapshot())

	var err error
	result.Outcomes, result.Summary, err = r.finish()
	return result, err
}

// send sends requests when they are due and waits for all that were sent.
func (r *run) send(ctx context.Context, encoded <-chan *job) (sent int) {
	places := make(chan struct{}, r.options.AtOnce)
	var under sync.WaitGroup
	defer under.Wait()
	for j := range encoded {
		if !r.options.ClosedLoop && !r.wait(ctx, j.due) {
			return sent
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return sent
		}
		if ctx.Err() != nil {
			return sent
		}
		sent++
		under.Go(func() {
			defer func() { <-places }()
			r.ask(ctx, j)
		})
	}
	return sent
}

// wait sleeps until a moment; false if the replay ends first.
func (r *run) wait(ctx context.Context, due time.Duration) bool {
	return pause.For(ctx, time.Until(r.begin.Add(due))) == nil
}

// ask sends one request and records what comes of it.
func (r *run) ask(ctx context.Context, j *job) {
	r.mu.Lock()
	r.mu.progress.Sent++
	r.mu.Unlock()
	var gaps record.Gaps
	o := record.Outcome{
		Line: j.line, PromptTokens: j.prompt, WantTokens: j.output, InOrder: j.inOrder, Due: j.due, Sent: time.Since(r.begin), First: record.Never,
	}
	if r.options.ClosedLoop {
		o.Due = o.Sent
	}
	answer, err := r.asker.Complete(ctx, j.body, j.prompt, j.output, func(n int) {
		at := time.Since(r.begin)
		if o.First == record.Never {
			o.First = at
		}
		o.End = at
		gaps.Add(at, n)
	})
	if err != nil {
		o.End = time.Since(r.begin)
	}
	o.OutputTokens, o.CachedTokens, o.Err = answer.OutputTokens, answer.CachedTokens, err
	j.body = nil // a long trace's bodies would not fit into memory together

	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.recorder.Add(&o, &gaps)
	r.mu.answered = append(r.mu.answered, expect.Sent{Request: j.request, Tokens: j.prompt, At: o.Sent, First: o.First})
	r.mu.lines = append(r.mu.lines, j.line)
	r.mu.progress.Done++
	if err == nil {
		r.mu.unreachable = 0
		return
	}
	r.mu.progress.Failed++
	if client.KindOf(err) != client.Unreachable {
		r.mu.unreachable = 0
	} else if r.mu.unreachable++; r.mu.unreachable == giveUp {
		r.stop(ErrGone)
	}
}

func (r *run) snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.mu.progress
	p.Elapsed = time.Since(r.begin)
	p.P50, p.P99 = r.mu.recorder.TTFT().Quantile(.5), r.mu.recorder.TTFT().Quantile(.99)
	return p
}

// tell reports progress until the context ends.
func (r *run) tell(ctx context.Context, progress func(Progress)) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			progress(r.snapshot())
		case <-ctx.Done():
			return
		}
	}
}

// finish completes the outcomes with what had to be cached.
// REQUIRES: no request is under way.
func (r *run) finish() ([]record.Outcome, *record.Summary, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bounds := expect.Compute(r.options.EngineBlock, r.options.Scale.BlockTokens, r.mu.answered)
	byLine := make(map[int]expect.Bounds, len(bounds))
	for i, line := range r.mu.lines {
		byLine[line] = bounds[i]
	}
	outcomes := r.mu.recorder.Outcomes()
	for i := range outcomes {
		b := byLine[outcomes[i].Line]
		outcomes[i].Must, outcomes[i].May = b.Must, b.May
	}
	summary, err := r.mu.recorder.Summary()
	return outcomes, summary, err
}
