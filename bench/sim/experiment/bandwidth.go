package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
)

func bandwidth(ctx context.Context, s *Setting) ([]report.Table, error) {
	c := s.Base.Costs
	gigabytes, mooncake, tcp, gloo := fig12()
	t := report.Table{
		Title: "time to move KV cache between two nodes", Answers: "S4 Fig. 12, 4 adapters of 200 Gb/s", Parameters: fmt.Sprintf("%g GB/s", c.LinkBytesPerSecond/1e9),
		Columns: []string{"GB", "ours, s", "Mooncake, s", "TCP, s", "Gloo, s"},
	}
	three := report.Of(3)
	var ours []float64
	for i, g := range gigabytes {
		took := g * 1e9 / c.LinkBytesPerSecond
		ours = append(ours, took)
		var last any
		if i < len(gloo) {
			last = three(gloo[i])
		}
		t.Add(report.Of(0)(g), three(took), three(mooncake[i]), three(tcp[i]), last)
	}
	t.Plots = []page.Plot{{Title: "Transfer of KV cache", XLabel: "GB", YLabel: "seconds", Series: []page.Series{
		{Name: "ours", X: gigabytes, Y: ours}, {Name: "paper", X: gigabytes, Y: mooncake, Reference: true}, {Name: "TCP", X: gigabytes, Y: tcp, Reference: true},
	}}}
	tables := []report.Table{t}
	gbits, ttft, recompute := fig13()
	for _, w := range s.Traces {
		b := report.Table{
			Title: "mean TTFT of " + w.Name + " by bandwidth", Answers: "S4 Fig. 13 (synthetic)",
			Parameters: fmt.Sprintf("%d prefill and %d decode nodes; the whole prompt's KV cache goes to the decode node behind the prefill, one transfer a link", s.Base.Prefill, s.Base.Decode),
			Columns:    []string{"Gb/s", "TTFT, s", "paper, s", "handover, s"},
			Notes:      []string{"Below the knee near 100 Gb/s the simulated links saturate and the queue grows for the whole run, which the paper's did not.", fmt.Sprintf("The paper's TTFT without any transfer, by computing anew: %.2f s.", recompute)},
		}
		plot := page.Plot{Title: "TTFT by bandwidth, " + w.Name, XLabel: "Gb/s", YLabel: "seconds", LogX: true, LogY: true}
		line := page.Series{Name: "ours"}
		for i, g := range gbits {
			config := s.Base
			config.Costs.LinkBytesPerSecond = g * 1e9 / 8
			config.SerialHandover = true
			all, err := s.one(ctx, fmt.Sprintf("%g Gb/s", g), w, config)
			if err != nil {
				return nil, err
			}
			var paper any
			if w.Name == synthetic {
				paper = report.Of(2)(ttft[i])
			}
			b.Add(report.Of(0)(g), report.Of(2)(all.MeanTTFT), paper, report.Of(3)(all.MeanHandover))
			line.X, line.Y = append(line.X, g), append(line.Y, all.MeanTTFT)
		}
		plot.Series = append(plot.Series, line)
		if w.Name == synthetic {
			plot.Series = append(plot.Series, page.Series{Name: "paper", X: gbits, Y: ttft, Reference: true})
		}
		b.Plots = []page.Plot{plot}
		tables = append(tables, b)
	}
	return tables, nil
}
