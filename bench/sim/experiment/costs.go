package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// lengths are those of the papers' figures.
func lengths() []int { return []int{8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10} }

func fit(c *model.Costs) string {
	return fmt.Sprintf("a 70B model on 8 A800; %.4g s a token, %.4g s a pair of tokens; %g s + %.3g s a token to load a prefix; service factor %g",
		c.LinearSeconds, c.QuadraticSeconds, c.LoadSeconds, c.LoadTokenSeconds, c.ServiceFactor)
}

func prefillCost(_ context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	t := report.Table{
		Title: "time to the first token of a prompt alone on a node", Answers: "S4 Fig. 14, prefill part", Parameters: fit(c),
		Columns: []string{"tokens", "no cache, s", "paper, s", "95 % cached, s", "paper, s", "GPU, s", "MFU"},
	}
	seconds := report.Of(3)
	none, most := fig14Prefill()
	var x, y, cached []float64
	for i, n := range lengths() {
		p := n * 95 / 100
		t.Add(n, seconds(c.Latency(n, 0)), seconds(none[i]), seconds(c.Latency(n, p)), seconds(most[i]), seconds(c.GPU(n, 0)), report.Of(3)(c.MFU(n, 0)))
		x, y, cached = append(x, float64(n)), append(y, c.Latency(n, 0)), append(cached, c.Latency(n, p))
	}
	t.Plots = []page.Plot{{
		Title: "Prefill by length", XLabel: "tokens", YLabel: "seconds", LogX: true, LogY: true,
		Series: []page.Series{{Name: "no cache", X: x, Y: y}, {Name: "paper", X: x, Y: none, Reference: true}, {Name: "95 % cached", X: x, Y: cached}, {Name: "paper 95 %", X: x, Y: most, Reference: true}},
	}}
	tables := []report.Table{t}
	if len(s.Traces) == 0 {
		return tables, nil
	}
	m := report.Table{
		Title: "mean GPU time of a trace's prefills", Answers: "S4 Fig. 8", Parameters: fit(c),
		Columns: []string{"trace", "no cache, s", "paper, s", "all hits, s", "Mooncake in the paper, s"},
		Notes:   []string{"The fit has not seen Fig. 8. All hits: a cache that forgets nothing, on every node."},
	}
	for _, w := range s.Traces {
		without, with := meanPrefill(c, w)
		m.Add(w.Name, seconds(without), known(fig8NoCache(), w.Name, 3), seconds(with), known(fig8Mooncake(), w.Name, 3))
	}
	return append(tables, m), nil
}

// meanPrefill is the mean GPU time of prefills, without a cache and with one that
// forgets nothing.
func meanPrefill(c *model.Costs, w *workload.Workload) (without, with float64) {
	var none, all []float64
	seen := map[uint64]bool{}
	for i := range w.Requests {
		r := &w.Requests[i]
		hit := 0
		for hit < len(r.Blocks) && seen[r.Blocks[hit]] {
			hit++
		}
		for _, b := range r.Blocks[hit:] {
			seen[b] = true
		}
		none = append(none, c.GPU(r.InputTokens, 0))
		all = append(all, c.GPU(r.InputTokens, min(hit*workload.BlockTokens, r.InputTokens-1)))
	}
	return stats.Mean(none), stats.Mean(all)
}

func layerwise(_ context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	t := report.Table{
		Title: "prefill with its loads and stores overlapped layer by layer", Answers: "S1, figure of layer-wise prefill",
		Parameters: fmt.Sprintf("%d layers, %.0f GB/s between host and GPU", c.Shape.Layers, c.Hardware.HostBytesPerSecond/1e9),
		Columns:    []string{"tokens", "cached", "compute, s", "overlapped, s", "one after the other, s", "hidden"},
		Notes:      []string{"Hidden: the share of the copies' time that overlapping takes away. About one layer's copy is left where computing takes longer."},
	}
	four := report.Of(4)
	var x, overlapped, serial []float64
	for _, n := range lengths() {
		for _, p := range []int{0, n * 95 / 100 / workload.BlockTokens * workload.BlockTokens} {
			l := c.Layerwise(n, p)
			hidden := stats.Ratio(l.Serial-l.Overlapped, l.Serial-l.Compute)
			t.Add(n, p, four(l.Compute), four(l.Overlapped), four(l.Serial), report.Of(3)(hidden))
			if p == 0 {
				x, overlapped, serial = append(x, float64(n)), append(overlapped, l.Overlapped-l.Compute), append(serial, l.Serial-l.Compute)
			}
		}
	}
	t.Plots = []page.Plot{{
		Title: "What storing the KV cache adds to a prefill", XLabel: "tokens", YLabel: "seconds", LogX: true, LogY: true,
		Series: []page.Series{{Name: "layer by layer", X: x, Y: overlapped}, {Name: "afterwards", X: x, Y: serial}},
	}}
	return []report.Table{t}, nil
}

func cpp(_ context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	t := report.Table{
		Title: "one prompt over groups of nodes that own a share of the layers each", Answers: "S1, chunked pipeline parallelism", Parameters: fit(c),
		Columns: []string{"tokens", "cached", "groups", "chunk", "seconds", "speed-up"},
		Notes:   []string{"Small chunks make matrices too small for a GPU; that loss is not in the model."},
	}
	plot := page.Plot{Title: "Prefill of 131,072 tokens", XLabel: "groups of nodes", YLabel: "seconds"}
	for _, chunk := range []int{2048, 8192} {
		line := page.Series{Name: fmt.Sprintf("chunks of %d", chunk)}
		for _, n := range []int{8 << 10, 32 << 10, 128 << 10} {
			for _, p := range []int{0, n / 2} {
				for _, groups := range []int{1, 2, 4, 8} {
					took := c.CPP(n, p, groups, chunk)
					t.Add(n, p, groups, chunk, report.Of(3)(took), report.Of(2)(c.GPU(n, p)/took))
					if n == 128<<10 && p == 0 {
						line.X, line.Y = append(line.X, float64(groups)), append(line.Y, took)
					}
				}
			}
		}
		plot.Series = append(plot.Series, line)
	}
	t.Plots = []page.Plot{plot}
	return []report.Table{t}, nil
}
