package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

func roofline(_ context.Context, s *Setting) ([]report.Table, error) {
	c := &s.Base.Costs
	t := report.Table{
		Title: "share of the GPUs' peak that a prefill reaches", Answers: "Eq. 1 and Eq. 2 of S4", Parameters: fit(c),
		Columns: []string{"tokens", "cached 0", "25 %", "50 %", "75 %", "95 %", "Eq. 1, PFLOP", "causal, PFLOP", "Eq. 2, GB/s"},
		Notes:   []string{"Eq. 2: the bandwidth from which on loading a prefix of that length is faster than computing it.", "Operations are 22 d² a token and layer and 2 d for each causal pair of tokens; Eq. 1 has 4 d, for it does not halve attention."},
	}
	two := report.Of(3)
	for _, n := range lengths() {
		row := []any{n}
		for _, share := range []int{0, 25, 50, 75, 95} {
			row = append(row, two(c.MFU(n, n*share/100)))
		}
		t.Add(append(row, report.Of(2)(c.Shape.PaperFLOPs(n)/1e15), report.Of(2)(c.Shape.FLOPs(n, 0)/1e15), report.Of(2)(c.Shape.MinLoadBytesPerSecond(c.Hardware, n)/1e9))...)
	}
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
	t.Plots = []report.Plot{{Title: "Transfer of KV cache", XLabel: "GB", YLabel: "seconds", Series: []report.Series{
		{Name: "ours", X: gigabytes, Y: ours}, {Name: "paper", X: gigabytes, Y: mooncake, Paper: true}, {Name: "TCP", X: gigabytes, Y: tcp, Paper: true},
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
		plot := report.Plot{Title: "TTFT by bandwidth, " + w.Name, XLabel: "Gb/s", YLabel: "seconds", LogX: true, LogY: true}
		line := report.Series{Name: "ours"}
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
			plot.Series = append(plot.Series, report.Series{Name: "paper", X: gbits, Y: ttft, Paper: true})
		}
		b.Plots = []report.Plot{plot}
		tables = append(tables, b)
	}
	return tables, nil
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
			t.Add(n, x.cached, three(c.Latency(n, x.cached)-gpu), three(gpu), three(c.Transfer(n)), three(decode), three(x.prefill), three(x.decode))
		}
	}
	t.Notes = append(t.Notes, "A sequence alone pays nothing for others: the time a sequence adds to a batch is left out of its decoding here.")
	tables := []report.Table{t}
	for _, w := range s.Traces {
		b := report.Table{
			Title: "mean time to the first token of " + w.Name + ", in parts", Answers: "the parts of S4 Fig. 5's bars",
			Parameters: fmt.Sprintf("%d prefill nodes, caches of %d blocks", s.Base.Prefill, s.Base.CacheBlocks),
			Columns:    []string{"strategy", "queue, s", "load, s", "GPU, s", "TTFT, s", "hit ratio"},
		}
		for _, strategy := range scheduler.Strategies() {
			config := s.Base
			config.Scheduler.Strategy = strategy
			one, err := s.one(ctx, string(strategy), w, config)
			if err != nil {
				return nil, err
			}
			b.Add(string(strategy), three(one.MeanQueue), three(one.MeanTTFT-one.MeanQueue-one.MeanGPU-one.MeanHandover), three(one.MeanGPU), three(one.MeanTTFT), three(one.HitRatio))
		}
		tables = append(tables, b)
	}
	return tables, nil
}

// capacity compares local caches with a global one, by size.
func capacity(ctx context.Context, s *Setting) ([]report.Table, error) {
	const nodes = 10
	var tables []report.Table
	for _, w := range s.Traces {
		w := w.WithOutputs(1)
		t := report.Table{
			Title: "hits and mean prefill of " + w.Name + " by cache a node", Answers: "S4 Fig. 10",
			Parameters: fmt.Sprintf("%d prefill nodes, one token of output, %s", nodes, s.Base.Policy),
			Columns:    []string{"blocks a node", "strategy", "hit ratio", "paper", "token ratio", "GPU, s", "paper, s", "TTFT, s"},
			Notes: []string{
				"random and load-balancing are caches that know nothing of each other; cache-aware sends a request where its prefix is; kvcache-centric also moves it; pooled is one memory for all, without transfers.",
				"The paper's local caches lie between load balancing and cache-aware: no routing by affinity comes out so low.",
			},
		}
		localHit, globalHit := fig10Hit()
		localTime, globalTime := fig10Time()
		for _, blocks := range []int{1000, 2930, cluster.NodeBlocks, 4 * cluster.NodeBlocks} {
			for _, name := range []string{"random", "load-balancing", "cache-aware", "kvcache-centric", "pooled"} {
				config := s.Base
				config.Prefill, config.Decode, config.CacheBlocks = nodes, 0, blocks
				config.Scheduler.Strategy = scheduler.Strategy(name)
				if config.Pooled = name == "pooled"; config.Pooled {
					config.Scheduler.Strategy = scheduler.CacheAware
				}
				one, err := s.one(ctx, fmt.Sprintf("%s, %d blocks", name, blocks), w, config)
				if err != nil {
					return nil, err
				}
				var hit, took any
				if blocks == cluster.NodeBlocks && name == "load-balancing" {
					hit, took = known(localHit, w.Name, 3), known(localTime, w.Name, 3)
				}
				if blocks == cluster.NodeBlocks && name == "kvcache-centric" {
					hit, took = known(globalHit, w.Name, 3), known(globalTime, w.Name, 3)
				}
				t.Add(blocks, name, report.Of(3)(one.HitRatio), hit, report.Of(3)(one.TokenHitRatio), report.Of(3)(one.MeanGPU), took, report.Of(2)(one.MeanTTFT))
			}
		}
		tables = append(tables, t)
	}
	return tables, nil
}

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
		plot := report.Plot{Title: "TTFT, " + w.Name, XLabel: "prefill nodes", YLabel: "seconds", Series: []report.Series{{Name: "ours"}, {Name: "paper", Paper: true}}}
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
		t.Plots = []report.Plot{plot}
		tables = append(tables, t)
	}
	return tables, nil
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
