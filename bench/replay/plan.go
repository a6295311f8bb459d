package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/expect"
	"github.com/mooncake-sidecar/sidecar/bench/replay/prompt"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// Options of a replay.
type Options struct {
	Scale       prompt.Scale
	EngineBlock int
	// OutputFactor scales outputs.
	OutputFactor float64
	// MaxTokens of prompt and output that the server takes, 0 for no limit.
	MaxTokens int
	// Speed divides the trace's times in an open loop.
	Speed      float64
	ClosedLoop bool
	// AtOnce is how many requests are under way in a closed loop, and at most in an
	// open one.
	AtOnce int
	SLO    record.SLO
}

// ErrOptions: options that can't be run.
var ErrOptions = errors.New("wrong options")

// Validate returns every fault.
func (o *Options) Validate() error {
	var faults []error
	fault := func(bad bool, format string, arguments ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, arguments...)...))
		}
	}
	// Written so that NaN is out of range.
	fault(!(o.Speed > 0 && o.Speed <= 1e6), "a speed of %g", o.Speed)
	fault(!(o.OutputFactor > 0 && o.OutputFactor <= 1e3), "outputs scaled by %g", o.OutputFactor)
	fault(o.AtOnce < 1, "%d requests at once", o.AtOnce)
	fault(o.SLO.TTFT <= 0 || o.SLO.TBT <= 0, "an objective of no time")
	if err := o.Scale.Check(o.EngineBlock); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// job is a request on its way.
type job struct {
	request *trace.Request
	line    int
	// tokens of the prompt and of the output.
	prompt, output int
	due            time.Duration
	inOrder        int
	body           []byte
}

// Skipped is a request that was not sent.
type Skipped struct {
	Line int    `json:"line"`
	Why  string `json:"why"`
}

// plan lists what is to be sent, and what can't be.
func (o *Options) plan(requests []trace.Numbered) (jobs []job, skipped []Skipped) {
	var sent []trace.Numbered
	for i := range requests {
		r := &requests[i]
		j := job{request: &r.Request, line: r.Line, prompt: o.Scale.Tokens(&r.Request), output: prompt.Output(r.OutputTokens, o.OutputFactor)}
		if o.MaxTokens > 0 && j.prompt+j.output > o.MaxTokens {
			skipped = append(skipped, Skipped{r.Line, fmt.Sprintf("%d tokens of prompt and %d of output, the server takes %d", j.prompt, j.output, o.MaxTokens)})
			continue
		}
		// From the first request that the trace has, so that leaving some out moves none.
		// In a closed loop it is due when one before was answered.
		if !o.ClosedLoop {
			due := float64(r.TimestampMS-requests[0].TimestampMS) * float64(time.Millisecond) / o.Speed
			if !(due <= float64(maxDue)) {
				skipped = append(skipped, Skipped{r.Line, fmt.Sprintf("due %.6g days after the first request, a replay waits for %d", due/float64(day), maxDue/day)})
				continue
			}
			j.due = time.Duration(due)
		}
		jobs = append(jobs, j)
		sent = append(sent, *r)
	}
	for i, cached := range expect.InOrder(o.EngineBlock, o.Scale.BlockTokens, sent, o.Scale.Tokens) {
		jobs[i].inOrder = cached
	}
	return jobs, skipped
}

// maxDue is how long a replay waits for a request: a year. A line that is due later
// has a damaged timestamp.
const (
	day    = 24 * time.Hour
	maxDue = 366 * day
)

// ahead is how many requests are encoded before they are due: a burst of long
// prompts must not wait for the encoder.
const ahead = 32

// encode makes the bodies, in order, until the context ends.
func encode(ctx context.Context, jobs []job, maker *prompt.Maker, asker Asker, out chan<- *job) {
	defer close(out)
	var tokens []uint32
	for i := range jobs {
		j := &jobs[i]
		tokens = maker.Append(tokens[:0], j.request)
		j.body = asker.Body(tokens, j.output)
		select {
		case out <- j:
		case <-ctx.Done():
			return
		}
	}
}
