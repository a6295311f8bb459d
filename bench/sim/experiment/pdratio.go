package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
)

func pdRatio(ctx context.Context, s *Setting) ([]report.Table, error) {
	const nodes = 16
	var tables []report.Table
	ttft, tbt, effective := fig15()
	for _, w := range s.Traces {
		t := report.Table{
			Title: "latencies of " + w.Name + " by the number of prefill nodes among 16", Answers: "S4 Fig. 15 (synthetic)",
			Parameters: fmt.Sprintf("objectives 10 s and 100 ms; %g ms a sequence in a decode iteration", 1e3*s.Base.Costs.DecodeSequenceSeconds),
			Columns:    []string{"prefill", "decode", "TTFT, s", "paper, s", "TBT, ms", "paper, ms", "effective", "paper"},
			Notes:      []string{"TBT: mean of a request's longest tenth of gaps, mean over requests."},
		}
		plot := page.Plot{Title: "TTFT, " + w.Name, XLabel: "prefill nodes", YLabel: "seconds", Series: []page.Series{{Name: "ours"}, {Name: "paper", Reference: true}}}
		for p := 5; p <= 11; p++ {
			config := s.Base
			config.Prefill, config.Decode = p, nodes-p
			result, err := cluster.Run(ctx, config, w)
			if err != nil {
				return nil, err
			}
			one := cluster.Summarize(result, cluster.Objectives{TTFT: 10 * time.Second, TBT: 100 * time.Millisecond})
			row := []any{p, nodes - p, report.Of(2)(one.MeanTTFT), nil, report.Of(1)(1e3 * one.MeanTBT), nil, report.Of(3)(one.Good), nil}
			plot.Series[0].X, plot.Series[0].Y = append(plot.Series[0].X, float64(p)), append(plot.Series[0].Y, one.MeanTTFT)
			if w.Name == synthetic {
				row[3], row[5], row[7] = report.Of(2)(ttft[p-5]), report.Of(1)(1e3*tbt[p-5]), report.Of(3)(effective[p-5])
				plot.Series[1].X, plot.Series[1].Y = append(plot.Series[1].X, float64(p)), append(plot.Series[1].Y, ttft[p-5])
			}
			t.Add(row...)
		}
		t.Plots = []page.Plot{plot}
		tables = append(tables, t)
	}
	return tables, nil
}
