package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

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
				"random and load-balancing are caches that know nothing of each other; cache-aware sends a request where its prefix is; kvcache-centric also moves it; pooled is one memory for all, without transfers, in which what is still being computed is no hit.",
				"The paper's local caches lie between load balancing and cache-aware: no routing by affinity comes out so low.",
			},
		}
		localHit, globalHit := fig10Hit()
		localTime, globalTime := fig10Time()
		plot := page.Plot{Title: "Hits by cache a node, " + w.Name, XLabel: "blocks", YLabel: "share of blocks", LogX: true}
		names := []string{"random", "load-balancing", "cache-aware", "kvcache-centric", "pooled"}
		for _, name := range names {
			plot.Series = append(plot.Series, page.Series{Name: name})
		}
		for _, blocks := range []int{1000, 2930, cluster.NodeBlocks, 4 * cluster.NodeBlocks} {
			for i, name := range names {
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
				plot.Series[i].X, plot.Series[i].Y = append(plot.Series[i].X, float64(blocks)), append(plot.Series[i].Y, one.HitRatio)
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
		t.Plots = []page.Plot{plot}
		one, err := s.sizes(ctx, w)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t, one)
	}
	return tables, nil
}
