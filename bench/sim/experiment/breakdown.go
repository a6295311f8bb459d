package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

func breakdown(ctx context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	const outputs = 128
	t := report.Table{
		Title: fmt.Sprintf("a request alone: prompt and %d tokens of output", outputs), Answers: "S4 Fig. 14", Parameters: fit(c),
		Columns: []string{"tokens", "cached", "load, s", "prefill GPU, s", "handover, s", "decode, s", "paper's prefill, s", "paper's decode, s"},
		Notes:   []string{"The handover is hidden by the prefill, layer by layer, but for one layer's part."},
	}
	three := report.Of(3)
	none, most := fig14Prefill()
	decodeNone, decodeMost := fig14Decode()
	alone := page.Plot{Title: "A request alone, its prompt with and without 95 % cached", XLabel: "tokens", YLabel: "seconds", LogX: true, LogY: true, Series: []page.Series{
		{Name: "prefill"}, {Name: "prefill, 95 %"}, {Name: "decode"}, {Name: "paper's prefill", Reference: true}, {Name: "paper's prefill, 95 %", Reference: true}, {Name: "paper's decode", Reference: true},
	}}
	point := func(series, tokens int, seconds float64) {
		s := &alone.Series[series]
		s.X, s.Y = append(s.X, float64(tokens)), append(s.Y, seconds)
	}
	for i, n := range lengths() {
		for _, x := range []struct {
			cached          int
			prefill, decode float64
		}{{0, none[i], decodeNone[i]}, {n * 95 / 100, most[i], decodeMost[i]}} {
			gpu := c.GPU(n, x.cached)
			decode := 0.0
			for k := range outputs {
				decode += c.Iteration(1, int64(n+k)) - c.DecodeSequenceSeconds
			}
			if x.cached == 0 {
				point(0, n, c.Latency(n, 0))
				point(2, n, decode)
				point(3, n, x.prefill)
				point(5, n, x.decode)
			} else {
				point(1, n, c.Latency(n, x.cached))
				point(4, n, x.prefill)
			}
			t.Add(n, x.cached, three(c.Latency(n, x.cached)-gpu), three(gpu), three(c.Transfer(n)), three(decode), three(x.prefill), three(x.decode))
		}
	}
	t.Plots = []page.Plot{alone}
	t.Notes = append(t.Notes, "A sequence alone pays nothing for others: the time a sequence adds to a batch is left out of its decoding here.")
	tables := []report.Table{t}
	for _, w := range s.Traces {
		b := report.Table{
			Title: "mean time to the first token of " + w.Name + ", in parts", Answers: "the parts of S4 Fig. 5's bars",
			Parameters: fmt.Sprintf("%d prefill nodes, caches of %d blocks", s.Base.Prefill, s.Base.CacheBlocks),
			Columns:    []string{"strategy", "queue, s", "load, s", "GPU, s", "TTFT, s", "hit ratio"},
		}
		plot := page.Plot{Title: "Parts of TTFT, " + w.Name, YLabel: "seconds", Series: []page.Series{{Name: "queue"}, {Name: "load"}, {Name: "GPU"}}}
		for _, strategy := range scheduler.Strategies() {
			config := s.Base
			config.Scheduler.Strategy = strategy
			one, err := s.one(ctx, string(strategy), w, config)
			if err != nil {
				return nil, err
			}
			load := one.MeanTTFT - one.MeanQueue - one.MeanGPU - one.MeanHandover
			b.Add(string(strategy), three(one.MeanQueue), three(load), three(one.MeanGPU), three(one.MeanTTFT), three(one.HitRatio))
			plot.Names = append(plot.Names, string(strategy))
			for i, part := range []float64{one.MeanQueue, load, one.MeanGPU} {
				plot.Series[i].Y = append(plot.Series[i].Y, part)
			}
		}
		b.Plots = []page.Plot{plot}
		tables = append(tables, b)
	}
	return tables, nil
}
