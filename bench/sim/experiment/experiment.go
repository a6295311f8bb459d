package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// Setting is what an experiment goes by.
type Setting struct {
	// Traces are the workloads of those that need one.
	Traces []*workload.Workload
	// Seeds is how many runs a mean is of.
	Seeds int
	// Base is the cluster that experiments vary.
	Base cluster.Config
	// Progress is told what is being run; it may be nil.
	Progress func(what string)
}

// Experiment is one of them.
type Experiment struct {
	Name, Usage string
	// NeedsTrace: there must be at least one workload.
	NeedsTrace bool
	Run        func(context.Context, *Setting) ([]report.Table, error)
}

// All returns the experiments in the order of the report.
func All() []Experiment {
	return []Experiment{
		{"prefill-cost", "the cost of a prefill by length and cached share (S4 Fig. 8, Fig. 14)", false, prefillCost},
		{"layerwise", "what loading and storing layer by layer hides (S1, layer-wise prefill)", false, layerwise},
		{"cpp", "chunked pipeline parallelism (S1, long-context prefill)", false, cpp},
		{"roofline", "MFU of prefill, bandwidth of decode (Eq. 1 and 2)", false, roofline},
		{"bandwidth", "transfers and TTFT by network bandwidth (S4 Fig. 12, Fig. 13)", false, bandwidth},
		{"breakdown", "where a request's time goes (S4 Fig. 14)", false, breakdown},
		{"schedule", "strategies of scheduling (S4 Fig. 5, S1 Fig. 6)", true, schedule},
		{"capacity", "local and global caches, one cache by size (S4 Fig. 9, Fig. 10)", true, capacity},
		{"pd-ratio", "prefill and decode nodes among 16 (S4 Fig. 15)", true, pdRatio},
		{"reject", "overload: when to refuse (S1 Table 2, Fig. 7, Fig. 8)", true, reject},
		{"baselines", "coupled engines (S4 Fig. 1, Fig. 7)", true, baselines},
		{"e2e", "throughput under objectives (S1 Fig. 9, Fig. 10, Fig. 11)", false, endToEnd},
		{"research", "what beats KVCache-centric scheduling under overload", true, research},
	}
}

// ErrTrace: an experiment lacks what it replays.
var ErrTrace = errors.New("no trace")

// Do runs an experiment.
func (e *Experiment) Do(ctx context.Context, s *Setting) ([]report.Table, error) {
	if e.NeedsTrace && len(s.Traces) == 0 {
		return nil, fmt.Errorf("%w: %s replays one", ErrTrace, e.Name)
	}
	tables, err := e.Run(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	for i := range tables {
		tables[i].Name = e.Name
	}
	return tables, nil
}

// Names of the papers' traces; only for them are there values to compare with.
const (
	conversation = "conversation"
	synthetic    = "synthetic"
)

// streamJitter of a seed is the workload's; the cluster's are others.
const streamJitter = 7

// run simulates one cluster once for every seed and returns the summaries. Arrivals
// come speed times as fast, put off by up to jitter.
func (s *Setting) run(ctx context.Context, what string, w *workload.Workload, config cluster.Config, speed float64, jitter time.Duration) ([]cluster.Summary, error) {
	var out []cluster.Summary
	for seed := range uint64(s.Seeds) {
		if s.Progress != nil {
			s.Progress(fmt.Sprintf("%s: %s, seed %d of %d", w.Name, what, seed+1, s.Seeds))
		}
		at, err := w.At(speed, jitter, rand.New(rand.NewPCG(config.Seed+seed, streamJitter)))
		if err != nil {
			return nil, err
		}
		c := config
		c.Seed += seed
		result, err := cluster.Run(ctx, c, at)
		if err != nil {
			return nil, err
		}
		out = append(out, cluster.Summarize(result, cluster.Paper()))
	}
	return out, nil
}

// one simulates a cluster once, with arrivals as they are.
func (s *Setting) one(ctx context.Context, what string, w *workload.Workload, config cluster.Config) (*cluster.Summary, error) {
	once := *s
	once.Seeds = 1
	all, err := once.run(ctx, what, w, config, 1, 0)
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// spread is a value's mean and deviation over summaries.
func spread(all []cluster.Summary, decimals int, value func(*cluster.Summary) float64) report.Spread {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = value(&all[i])
	}
	return report.Spread{Mean: stats.Mean(values), Deviation: stats.Deviation(values), Decimals: decimals}
}

// known returns a paper's value for a trace, nil where there is none.
func known(values map[string]float64, trace string, decimals int) any {
	v, ok := values[trace]
	if !ok {
		return nil
	}
	return report.Number{Value: v, Decimals: decimals}
}
