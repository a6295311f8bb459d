package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// maxListed is how many faults and failures a report names; all are counted.
const maxListed = 1000

// Setup is what was replayed, where and how.
type Setup struct {
	Version      string    `json:"version"`
	Begin        time.Time `json:"begin"`
	Trace        string    `json:"trace"`
	URL          string    `json:"url"`
	Model        string    `json:"model"`
	Loop         string    `json:"loop"` // open or closed
	Speed        float64   `json:"speed,omitempty"`
	AtOnce       int       `json:"at_once"`
	BlockTokens  int       `json:"block_tokens"`
	ScaledBlock  int       `json:"scaled_block_tokens"`
	OutputFactor float64   `json:"output_factor"`
	FirstToken   int       `json:"first_token"`
	Vocabulary   int       `json:"vocabulary"`
	Seed         uint64    `json:"seed"`
}

// Failure is a request that was not answered in full.
type Failure struct {
	Line int    `json:"line"`
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// Fault is something wrong in the trace.
type Fault struct {
	Line    int    `json:"line"`
	Kind    string `json:"kind"`
	Why     string `json:"why"`
	Dropped bool   `json:"dropped"`
}

// Report is all of a replay.
type Report struct {
	Setup Setup `json:"setup"`
	// Ended says why the replay ended early, or is empty.
	Ended   string `json:"ended,omitempty"`
	NotSent int    `json:"not_sent"`
	// TraceError ended the reading of the trace early.
	TraceError  string           `json:"trace_error,omitempty"`
	FaultsBy    []record.Count   `json:"trace_faults_by,omitempty"`
	Faults      []Fault          `json:"trace_faults,omitempty"`
	SkippedN    int              `json:"skipped"`
	Skipped     []replay.Skipped `json:"skipped_requests,omitempty"`
	Failures    []Failure        `json:"failures,omitempty"`
	MustInOrder int64            `json:"must_be_cached_in_order"`
	Summary     *record.Summary  `json:"summary"`
	Versus      *Versus          `json:"versus,omitempty"`

	outcomes []record.Outcome
}

// New puts a report together. traceErr may be nil.
func New(setup Setup, result *replay.Result, faults []trace.Fault, traceErr error) *Report {
	r := &Report{Setup: setup, NotSent: result.NotSent, SkippedN: len(result.Skipped), MustInOrder: result.InOrder, Summary: result.Summary, outcomes: result.Outcomes}
	if result.Ended != nil {
		r.Ended = result.Ended.Error()
	}
	if traceErr != nil {
		r.TraceError = traceErr.Error()
	}
	r.Skipped = result.Skipped[:min(len(result.Skipped), maxListed)]
	counts := map[trace.Kind]int{}
	for i := range faults {
		f := &faults[i]
		counts[f.Kind]++
		if len(r.Faults) < maxListed {
			r.Faults = append(r.Faults, Fault{f.Line, string(f.Kind), f.Err.Error(), f.Dropped})
		}
	}
	for _, kind := range []trace.Kind{trace.Truncated, trace.BadOrder, trace.BadBlocks, trace.UnknownField, trace.Malformed} {
		if counts[kind] > 0 {
			r.FaultsBy = append(r.FaultsBy, record.Count{Name: string(kind), Count: counts[kind]})
		}
	}
	for i := range result.Outcomes {
		if o := &result.Outcomes[i]; o.Err != nil && len(r.Failures) < maxListed {
			r.Failures = append(r.Failures, Failure{o.Line, string(client.KindOf(o.Err)), o.Err.Error()})
		}
	}
	return r
}

// Whole tells whether everything was replayed and answered; an unknown field that
// was ignored does not count.
func (r *Report) Whole() bool {
	for _, f := range r.FaultsBy {
		if f.Name != string(trace.UnknownField) {
			return false
		}
	}
	return r.Ended == "" && r.TraceError == "" && r.NotSent == 0 && r.SkippedN == 0 && r.Summary.Failed == 0
}

// WriteJSON writes one object.
func (r *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
