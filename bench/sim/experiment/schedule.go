package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// grid is the step of the conversation trace's clock.
const grid = 3 * time.Second

// load is a case of the scheduling experiment.
type load struct {
	name    string
	speed   float64
	service float64
	jitter  time.Duration
}

func loads() []load {
	return []load{
		{"1x", 1, 1, 0}, {"1x, service times 1.3", 1, 1.3, 0}, {"1.4x", 1.4, 1, 0}, {"1.4x, arrivals spread over 3 s", 1.4, 1, grid}, {"2x", 2, 1, 0},
	}
}

func schedule(ctx context.Context, s *Setting) ([]report.Table, error) {
	var tables []report.Table
	for _, w := range s.Traces {
		t := report.Table{
			Title: "strategies on " + w.Name, Answers: "S4 Fig. 5 (16 nodes, conversation); S1 Fig. 6",
			Parameters: fmt.Sprintf("%d prefill nodes, caches of %d blocks, %s, threshold %g; %d seeds", s.Base.Prefill, s.Base.CacheBlocks, s.Base.Policy, s.Base.Scheduler.Threshold, s.Seeds),
			Columns:    []string{"load", "strategy", "TTFT, s", "to the one above", "paper, s", "<= 5 s", "<= 10 s", "<= 30 s", "hit ratio", "token ratio", "transfers"},
			Notes: []string{
				"With service times of 1.3 random, load balancing and the ratio of the last two strategies are as in the paper; both cache-aware strategies are faster here than there, for estimates are exact.",
				"Where nothing is drawn, seeds do not differ.",
			},
		}
		plot := page.Plot{Title: "Mean TTFT, " + w.Name, YLabel: "seconds", LogY: true, Series: []page.Series{{Name: "1x"}, {Name: "1x, service 1.3"}, {Name: "paper", Reference: true}}}
		for _, l := range loads() {
			if err := s.strategies(ctx, &t, &plot, w, l); err != nil {
				return nil, err
			}
		}
		if w.Name != conversation {
			plot.Series = plot.Series[:2]
		}
		t.Plots = []page.Plot{plot}
		tables = append(tables, t)
	}
	return tables, nil
}

func (s *Setting) strategies(ctx context.Context, t *report.Table, plot *page.Plot, w *workload.Workload, l load) error {
	above := 0.0
	for _, strategy := range scheduler.Strategies() {
		config := s.Base
		config.Decode = 0
		config.Scheduler.Strategy = strategy
		config.Costs.ServiceFactor *= l.service
		all, err := s.run(ctx, l.name+", "+string(strategy), w, config, l.speed, l.jitter)
		if err != nil {
			return err
		}
		ttft := spread(all, 2, func(x *cluster.Summary) float64 { return x.MeanTTFT })
		var ratio, paper any
		if above > 0 {
			ratio = report.Of(3)(ttft.Mean / above)
		}
		above = ttft.Mean
		if w.Name == conversation && l.speed == 1 {
			paper = known(fig5(), string(strategy), 2)
		}
		within := func(value func(*cluster.Summary) float64) report.Spread { return spread(all, 3, value) }
		t.Add(l.name, string(strategy), ttft, ratio, paper,
			within(func(x *cluster.Summary) float64 { return x.Within5 }), within(func(x *cluster.Summary) float64 { return x.Within10 }), within(func(x *cluster.Summary) float64 { return x.Within30 }),
			within(func(x *cluster.Summary) float64 { return x.HitRatio }), within(func(x *cluster.Summary) float64 { return x.TokenHitRatio }),
			spread(all, 0, func(x *cluster.Summary) float64 { return float64(x.Transfers) }))
		switch {
		case l.speed != 1:
		case l.service == 1:
			plot.Names = append(plot.Names, string(strategy))
			plot.Series[0].Y = append(plot.Series[0].Y, ttft.Mean)
			plot.Series[2].Y = append(plot.Series[2].Y, fig5()[string(strategy)])
		default:
			plot.Series[1].Y = append(plot.Series[1].Y, ttft.Mean)
		}
	}
	return nil
}
