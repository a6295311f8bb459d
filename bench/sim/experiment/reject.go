package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// refusal is a row of the overload table.
type refusal struct {
	name      string
	admission scheduler.Admission
	residence time.Duration
}

func refusals() []refusal {
	return []refusal{
		{"baseline", scheduler.AdmitBaseline, time.Minute}, {"early", scheduler.AdmitEarly, time.Minute},
		{"prediction, 60 s", scheduler.AdmitPrediction, time.Minute}, {"prediction, 90 s", scheduler.AdmitPrediction, 90 * time.Second},
		{"prediction, 120 s", scheduler.AdmitPrediction, 2 * time.Minute},
	}
}

// decodeCosts returns the cluster with a decode model that is told to be the one
// for overload, unless the caller has set another than the default.
func decodeCosts(c cluster.Config) cluster.Config {
	if c.Costs.DecodeSequenceSeconds == model.LatencySequenceSeconds {
		c.Costs.DecodeSequenceSeconds = model.RejectionSequenceSeconds
	}
	return c
}

func share(part, whole int) float64 { return stats.Ratio(float64(part), float64(whole)) }

// overload is the cluster of the overload table.
func (s *Setting) overload(prefill int, r refusal) cluster.Config {
	c := decodeCosts(s.Base)
	c.Prefill = prefill
	c.TTFT, c.TBT = cluster.Paper().TTFT, cluster.Paper().TBT
	c.Scheduler.Admission, c.Scheduler.Residence = r.admission, r.residence
	c.Sample = time.Second
	return c
}

func reject(ctx context.Context, s *Setting) ([]report.Table, error) {
	var tables []report.Table
	for _, w := range s.Traces {
		for _, prefill := range []int{s.Base.Prefill, s.Base.Prefill * 3 / 4} {
			t, err := s.rejections(ctx, w, prefill)
			if err != nil {
				return nil, err
			}
			tables = append(tables, t)
		}
	}
	return tables, nil
}

func (s *Setting) rejections(ctx context.Context, w *workload.Workload, prefill int) (report.Table, error) {
	const speed = 2
	base := s.overload(prefill, refusals()[0])
	t := report.Table{
		Title: fmt.Sprintf("%s at %dx on %dP%dD: what is refused, and when", w.Name, speed, prefill, base.Decode), Answers: "S1 Table 2, Fig. 7 and Fig. 8",
		Parameters: fmt.Sprintf("objectives 30 s and 100 ms; %g ms a sequence in a decode iteration, chosen so that the baseline refuses the paper's share; arrivals spread over 3 s; %d seeds",
			1e3*base.Costs.DecodeSequenceSeconds, s.Seeds),
		Columns: []string{"policy", "refused", "share", "paper", "for TTFT", "decode, early", "decode, late", "wasted GPU, s", "sd busy prefill", "corr with decode"},
		Notes: []string{
			"Robust: refusing early takes away about half of the late refusals and of the prefill time that is wasted, and makes prefill and decode load go up and down against each other; prediction damps that.",
			"Not robust: the order of the totals. Where decode is the bottleneck, the baseline keeps it full by prefilling too much, and what is refused is demand less decode capacity, whatever is refused when. With fewer prefill nodes the order turns round. The paper's 4183, 3771 and 3589 refusals rest on objectives, residence and a trace that it does not give.",
		},
	}
	for _, r := range refusals() {
		all, err := s.run(ctx, r.name, w, s.overload(prefill, r), speed, grid)
		if err != nil {
			return t, err
		}
		var paper any
		if w.Name == conversation && r.residence == time.Minute && prefill == s.Base.Prefill {
			paper = known(table2(), string(r.admission), 3)
		}
		of := func(decimals int, value func(*cluster.Summary) float64) report.Spread {
			return spread(all, decimals, value)
		}
		t.Add(r.name, of(0, func(x *cluster.Summary) float64 { return float64(x.Refused) }), of(3, func(x *cluster.Summary) float64 { return share(x.Refused, x.Requests) }), paper,
			of(0, func(x *cluster.Summary) float64 { return float64(x.RefusedFirst) }), of(0, func(x *cluster.Summary) float64 { return float64(x.RefusedEarly) }),
			of(0, func(x *cluster.Summary) float64 { return float64(x.RefusedLate) }), of(0, func(x *cluster.Summary) float64 { return x.WastedGPU }),
			of(3, func(x *cluster.Summary) float64 { return x.BusyDeviation }), of(3, func(x *cluster.Summary) float64 { return x.LoadCorrelation }))
	}
	plot, err := s.loadPlot(ctx, w, prefill, speed)
	if err != nil {
		return t, err
	}
	t.Plots = plot
	return t, nil
}

// loadPlot draws the loads over ten minutes of one run for two policies.
func (s *Setting) loadPlot(ctx context.Context, w *workload.Workload, prefill int, speed float64) ([]page.Plot, error) {
	at, err := w.At(speed, 0, nil)
	if err != nil {
		return nil, err
	}
	var plots []page.Plot
	for _, r := range refusals()[1:3] {
		config := s.overload(prefill, r)
		config.Sample = 5 * time.Second
		result, err := cluster.Run(ctx, config, at)
		if err != nil {
			return nil, err
		}
		p := page.Plot{Title: "Load under " + r.name, XLabel: "seconds", YLabel: "share of capacity", Series: []page.Series{{Name: "prefill nodes busy"}, {Name: "decode iteration over 100 ms"}}}
		for i, x := range result.Samples {
			if seconds := float64(i) * config.Sample.Seconds(); seconds >= 300 && seconds <= 900 {
				p.Series[0].X, p.Series[0].Y = append(p.Series[0].X, seconds), append(p.Series[0].Y, x.BusyPrefill)
				p.Series[1].X, p.Series[1].Y = append(p.Series[1].X, seconds), append(p.Series[1].Y, x.DecodeLoad/config.TBT.Seconds())
			}
		}
		plots = append(plots, p)
	}
	return plots, nil
}
