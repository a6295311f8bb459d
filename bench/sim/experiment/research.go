package experiment

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// idea is something that might beat the papers' scheduler.
type idea struct {
	name  string
	apply func(*cluster.Config)
}

// ideas for placing. The first is what the others are compared with.
func placements() []idea {
	return []idea{
		{"kvcache-centric, threshold 4", func(*cluster.Config) {}},
		{"threshold 1", func(c *cluster.Config) { c.Scheduler.Threshold = 1 }},
		{"threshold 16", func(c *cluster.Config) { c.Scheduler.Threshold = 16 }},
		{"threshold by the links' wait", func(c *cluster.Config) { c.Scheduler.Threshold, c.Scheduler.Balance = 1, scheduler.ByLinks }},
		{"fetch when that is faster", byCost},
		{"... and others' work counts 4", func(c *cluster.Config) {
			byCost(c)
			c.Scheduler.WorkWeight = 4
		}},
		{"... counts by the backlog", func(c *cluster.Config) {
			byCost(c)
			c.Scheduler.WorkBacklog = time.Second
		}},
		{"prefixes used twice copied ahead", func(c *cluster.Config) {
			c.Replication = scheduler.ReplicationOptions{Uses: 2, HalfLife: time.Minute, MinBlocks: 2}
		}},
		{"prefixes used again copied ahead", func(c *cluster.Config) {
			c.Replication = scheduler.ReplicationOptions{Uses: 1, HalfLife: time.Minute, MinBlocks: 2}
		}},
		{"short prompts first, patience 1", func(c *cluster.Config) { c.Scheduler.Patience = 1 }},
		{"patience 5", func(c *cluster.Config) { c.Scheduler.Patience = 5 }},
		{"patience 20", func(c *cluster.Config) { c.Scheduler.Patience = 20 }},
		{"patience 5, fetch when faster", best},
		{"... and others' work counts by the backlog", func(c *cluster.Config) {
			best(c)
			c.Scheduler.WorkBacklog = time.Second
		}},
		{"patience 5, fetch when faster, estimates off by 30 %", func(c *cluster.Config) {
			best(c)
			c.EstimateError = 0.3
		}},
		{"threshold 4, estimates off by 30 %", func(c *cluster.Config) { c.EstimateError = 0.3 }},
	}
}

func byCost(c *cluster.Config) { c.Scheduler.Balance = scheduler.ByCost }

// best is what came out as such.
func best(c *cluster.Config) {
	byCost(c)
	c.Scheduler.Patience = 5
}

func research(ctx context.Context, s *Setting) ([]report.Table, error) {
	var tables []report.Table
	for _, w := range s.Traces {
		for _, speed := range []float64{1.4, 2} {
			for _, study := range []func(context.Context, *workload.Workload, float64) (report.Table, error){s.placing, s.admitting, s.affinity} {
				t, err := study(ctx, w, speed)
				if err != nil {
					return nil, err
				}
				tables = append(tables, t)
			}
		}
	}
	return tables, nil
}

// placing compares placements by TTFT alone: nothing is refused.
func (s *Setting) placing(ctx context.Context, w *workload.Workload, speed float64) (report.Table, error) {
	t := report.Table{
		Title: fmt.Sprintf("placing: %s at %gx", w.Name, speed), Answers: "no figure: what beats S4's scheduler",
		Parameters: fmt.Sprintf("%d prefill nodes; arrivals spread over 3 s; %d seeds; ratios are means of seeds' ratios to the first row", s.Base.Prefill, s.Seeds),
		Columns:    []string{"what", "TTFT, s", "ratio", "P90, s", "ratio", "P99, s", "<= 10 s", "hit ratio", "transfers", "GB"},
		Notes: []string{
			"Patience p: a node takes its prompts by arrival plus p times their work, so that none waits for shorter ones that came more than p times its own work later.",
			"Work of others: the time that a placement takes from the cluster counts in seconds of the request's own.",
		},
	}
	var first []cluster.Summary
	plot := page.Plot{Title: fmt.Sprintf("TTFT to the first row's, %s at %gx", w.Name, speed), XLabel: "row of the table", YLabel: "ratio", Series: []page.Series{{Name: "mean"}, {Name: "P90"}}}
	for i, x := range placements() {
		config := s.Base
		config.Decode = 0
		x.apply(&config)
		all, err := s.run(ctx, fmt.Sprintf("%gx, %s", speed, x.name), w, config, speed, grid)
		if err != nil {
			return t, err
		}
		if first == nil {
			first = all
		}
		mean, p90 := func(y *cluster.Summary) float64 { return y.MeanTTFT }, func(y *cluster.Summary) float64 { return y.P90TTFT }
		means, tails := ratios(all, first, mean), ratios(all, first, p90)
		plot.Names = append(plot.Names, strconv.Itoa(i+1))
		plot.Series[0].Y, plot.Series[1].Y = append(plot.Series[0].Y, means.Mean), append(plot.Series[1].Y, tails.Mean)
		t.Add(x.name, spread(all, 2, mean), means, spread(all, 2, p90), tails, spread(all, 2, func(y *cluster.Summary) float64 { return y.P99TTFT }),
			spread(all, 3, func(y *cluster.Summary) float64 { return y.Within10 }), spread(all, 3, func(y *cluster.Summary) float64 { return y.HitRatio }),
			spread(all, 0, func(y *cluster.Summary) float64 { return float64(y.Transfers) }), spread(all, 0, func(y *cluster.Summary) float64 { return y.TransferGB }))
	}
	t.Plots = []page.Plot{plot}
	return t, nil
}

// ratios compares runs seed by seed.
func ratios(all, first []cluster.Summary, value func(*cluster.Summary) float64) report.Spread {
	r := make([]float64, len(all))
	for i := range all {
		r[i] = stats.Ratio(value(&all[i]), value(&first[i]))
	}
	return report.Spread{Mean: stats.Mean(r), Deviation: stats.Deviation(r), Decimals: 3}
}

// admissions are ideas for what to refuse. Limit is what the scheduler is told
// instead of the objective for the time between tokens.
func admissions() []idea {
	admit := func(a scheduler.Admission, limitMS int, change func(*cluster.Config)) func(*cluster.Config) {
		return func(c *cluster.Config) {
			c.Scheduler.Admission = a
			c.TTFT, c.TBT = cluster.Paper().TTFT, time.Duration(limitMS)*time.Millisecond
			if change != nil {
				change(c)
			}
		}
	}
	// Half a minute is how long a sequence really decodes.
	half := func(c *cluster.Config) { c.Scheduler.Residence = 30 * time.Second }
	ideas := []idea{{"nothing is refused", func(*cluster.Config) {}}}
	for _, limit := range []int{100, 95, 90, 85} {
		for _, a := range []scheduler.Admission{scheduler.AdmitBaseline, scheduler.AdmitEarly, scheduler.AdmitPrediction} {
			ideas = append(ideas, idea{fmt.Sprintf("%s, limit %d ms", a, limit), admit(a, limit, nil)})
		}
	}
	for _, slack := range []float64{0, .05, .1} {
		ideas = append(ideas, idea{fmt.Sprintf("full, 30 s, slack %g, limit 90 ms", slack), admit(scheduler.AdmitFull, 90, func(c *cluster.Config) {
			half(c)
			c.Scheduler.Slack = slack
		})})
	}
	for _, limit := range []int{90, 85} {
		ideas = append(ideas,
			idea{fmt.Sprintf("early, best placing, limit %d ms", limit), admit(scheduler.AdmitEarly, limit, best)},
			idea{fmt.Sprintf("prediction, best placing, limit %d ms", limit), admit(scheduler.AdmitPrediction, limit, best)},
			idea{fmt.Sprintf("full, 30 s, slack 0, best placing, limit %d ms", limit), admit(scheduler.AdmitFull, limit, func(c *cluster.Config) {
				half(c)
				best(c)
				c.Scheduler.Slack = 0
			})})
	}
	return ideas
}

// admitting compares what is refused by the requests that keep both objectives.
func (s *Setting) admitting(ctx context.Context, w *workload.Workload, speed float64) (report.Table, error) {
	t := report.Table{
		Title: fmt.Sprintf("refusing: %s at %gx", w.Name, speed), Answers: "no figure: what beats S1's early rejection",
		Parameters: fmt.Sprintf("%dP%dD, objectives 30 s and 100 ms; arrivals spread over 3 s; %d seeds; %g ms a sequence in a decode iteration",
			s.Base.Prefill, s.Base.Decode, s.Seeds, 1e3*decodeCosts(s.Base).Costs.DecodeSequenceSeconds),
		Columns: []string{"what", "goodput, req/s", "good", "refused", "late", "wasted GPU, s", "TTFT, s", "P90, s", "TBT p90, ms", "decode load, ms"},
		Notes:   []string{"Good: both objectives kept, with TBT the mean of the longest tenth of gaps. Limit: what the scheduler is told, below the objective, for an iteration grows while its sequences do."},
	}
	for _, x := range admissions() {
		config := decodeCosts(s.Base)
		config.Sample = time.Second
		x.apply(&config)
		all, err := s.run(ctx, fmt.Sprintf("%gx, %s", speed, x.name), w, config, speed, grid)
		if err != nil {
			return t, err
		}
		of := func(decimals int, value func(*cluster.Summary) float64) report.Spread {
			return spread(all, decimals, value)
		}
		t.Add(x.name, of(3, func(y *cluster.Summary) float64 { return y.Goodput }), of(3, func(y *cluster.Summary) float64 { return y.Good }),
			of(3, func(y *cluster.Summary) float64 { return share(y.Refused, y.Requests) }), of(0, func(y *cluster.Summary) float64 { return float64(y.RefusedLate) }),
			of(0, func(y *cluster.Summary) float64 { return y.WastedGPU }), of(2, func(y *cluster.Summary) float64 { return y.MeanTTFT }), of(2, func(y *cluster.Summary) float64 { return y.P90TTFT }),
			of(1, func(y *cluster.Summary) float64 { return 1e3 * y.P90TBT }), of(1, func(y *cluster.Summary) float64 { return 1e3 * y.DecodeLoad }))
	}
	return t, nil
}

// affine lets decode nodes keep prompts and be chosen by that.
func affine(share float64) func(*cluster.Config) {
	return func(c *cluster.Config) { c.DecodeBlocks, c.Scheduler.DecodeAffinity = c.CacheBlocks, share }
}

// affinity compares decode placement where the handover costs time.
func (s *Setting) affinity(ctx context.Context, w *workload.Workload, speed float64) (report.Table, error) {
	t := report.Table{
		Title: fmt.Sprintf("decode affinity: %s at %gx", w.Name, speed), Answers: "no figure: what keeping prompts on decode nodes brings",
		Parameters: fmt.Sprintf("%dP%dD, 100 Gb/s, the whole handover behind the prefill; decode nodes keep %d blocks; %d seeds", s.Base.Prefill, s.Base.Decode, s.Base.CacheBlocks, s.Seeds),
		Columns:    []string{"what", "TTFT, s", "P90, s", "handover, s", "handed over, TB", "saved", "TBT p90, ms"},
	}
	for _, x := range []idea{
		{"least loaded, all is sent", func(*cluster.Config) {}},
		{"least loaded, what lacks is sent", func(c *cluster.Config) { c.DecodeBlocks = c.CacheBlocks }},
		{"affinity, up to a tenth longer", affine(.1)},
		{"affinity, up to a quarter longer", affine(.25)},
		{"affinity, up to half longer", affine(.5)},
		{"affinity, up to 20 times longer", affine(20)},
		{"the same below 100 ms", func(c *cluster.Config) {
			affine(20)(c)
			c.TBT = cluster.Paper().TBT
		}},
	} {
		config := decodeCosts(s.Base)
		config.SerialHandover = true
		config.Costs.LinkBytesPerSecond = 12.5e9
		x.apply(&config)
		all, err := s.run(ctx, fmt.Sprintf("%gx, %s", speed, x.name), w, config, speed, grid)
		if err != nil {
			return t, err
		}
		of := func(decimals int, value func(*cluster.Summary) float64) report.Spread {
			return spread(all, decimals, value)
		}
		t.Add(x.name, of(2, func(y *cluster.Summary) float64 { return y.MeanTTFT }), of(2, func(y *cluster.Summary) float64 { return y.P90TTFT }), of(3, func(y *cluster.Summary) float64 { return y.MeanHandover }),
			of(1, func(y *cluster.Summary) float64 { return y.HandoverGB / 1e3 }), of(3, func(y *cluster.Summary) float64 { return stats.Ratio(y.SavedGB, y.SavedGB+y.HandoverGB) }), of(1, func(y *cluster.Summary) float64 { return 1e3 * y.P90TBT }))
	}
	return t, nil
}
