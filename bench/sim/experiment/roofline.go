package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
)

func roofline(_ context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	t := report.Table{
		Title: "share of the GPUs' peak that a prefill reaches", Answers: "Eq. 1 and Eq. 2 of S4", Parameters: fit(c),
		Columns: []string{"tokens", "cached 0", "25 %", "50 %", "75 %", "95 %", "Eq. 1, PFLOP", "causal, PFLOP", "Eq. 2, GB/s"},
		Notes:   []string{"Eq. 2: the bandwidth from which on loading a prefix of that length is faster than computing it.", "Operations are 22 d² a token and layer and 2 d for each causal pair of tokens; Eq. 1 has 4 d, for it does not halve attention."},
	}
	plot := page.Plot{Title: "MFU of prefill", XLabel: "tokens", YLabel: "share of peak", LogX: true}
	shares := []int{0, 25, 50, 75, 95}
	for _, share := range shares {
		plot.Series = append(plot.Series, page.Series{Name: fmt.Sprintf("%d %% cached", share)})
	}
	for _, n := range lengths() {
		row := []any{n}
		for i, share := range shares {
			mfu := c.MFU(n, n*share/100)
			row = append(row, report.Of(3)(mfu))
			plot.Series[i].X, plot.Series[i].Y = append(plot.Series[i].X, float64(n)), append(plot.Series[i].Y, mfu)
		}
		t.Add(append(row, report.Of(2)(c.Shape.PaperFLOPs(n)/1e15), report.Of(2)(c.Shape.FLOPs(n, 0)/1e15), report.Of(2)(c.Shape.MinLoadBytesPerSecond(c.Hardware, n)/1e9))...)
	}
	t.Plots = []page.Plot{plot}
	d := report.Table{
		Title: "a decode iteration against what its memory traffic needs at peak", Answers: "S1 Fig. 2, decode",
		Parameters: fmt.Sprintf("%.2f ms + %.3g ms a sequence + %.3g us a token of context", 1e3*c.DecodeSeconds, 1e3*c.DecodeSequenceSeconds, 1e6*c.DecodeTokenSeconds),
		Columns:    []string{"sequences", "tokens each", "iteration, ms", "traffic at peak, ms", "tokens/s"},
	}
	weights := 2 * 70e9
	for _, n := range []int{1, 4, 16, 32, 64} {
		for _, each := range []int{2048, 12035, 32768} {
			total := int64(n) * int64(each)
			took := c.Iteration(n, total)
			peak := (weights + float64(total*c.Shape.KVBytesPerToken())) / c.Hardware.HBMBytesPerSecond
			d.Add(n, each, report.Of(1)(1e3*took), report.Of(1)(1e3*peak), report.Of(0)(float64(n)/took))
		}
	}
	return []report.Table{t, d}, nil
}
