package experiment

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/sim/node"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// sizes compares the hits of one cache by its size with the paper's. Requests come one
// after the other: no time passes.
func (s *Setting) sizes(ctx context.Context, w *workload.Workload) (report.Table, error) {
	t := report.Table{
		Title: "hits of " + w.Name + " by the size of one cache", Answers: "S4 Fig. 9", Parameters: "LRU, one request after the other, each used from its root on, as the paper's values tell",
		Columns: []string{"tokens", "blocks", "token ratio", "paper"},
		Notes:   []string{"The paper counted tokens where the public traces name blocks of 512: conversations, which part within blocks, come out .02 to .04 lower."},
	}
	tokens, paper := fig9(w.Name)
	plot := page.Plot{Title: "Hits by the size of one cache, " + w.Name, XLabel: "tokens", YLabel: "share of tokens", LogX: true, Series: []page.Series{{Name: "ours"}, {Name: "paper", X: tokens, Y: paper, Reference: true}}}
	if paper == nil {
		plot.Series = plot.Series[:1]
	}
	for i, size := range tokens {
		if s.Progress != nil {
			s.Progress(fmt.Sprintf("%s: one cache of %.0f tokens", w.Name, size))
		}
		blocks := int(size) / workload.BlockTokens
		ratio, err := hitsOf(ctx, w, "lru", blocks)
		if err != nil {
			return t, err
		}
		var beside any
		if paper != nil {
			beside = report.Of(3)(paper[i])
		}
		t.Add(int(size), blocks, report.Of(3)(ratio), beside)
		plot.Series[0].X, plot.Series[0].Y = append(plot.Series[0].X, size), append(plot.Series[0].Y, ratio)
	}
	t.Plots = []page.Plot{plot}
	return t, nil
}

// hitsOf is the share of a workload's tokens that one cache of so many blocks has. It
// uses blocks from the root on: the daemons' order, from the leaf, comes out as much as
// twice as high below a hundred blocks, and the same above a thousand.
func hitsOf(ctx context.Context, w *workload.Workload, policy string, blocks int) (float64, error) {
	c, err := node.NewCache(policy, blocks)
	if err != nil {
		return 0, err
	}
	hit, all := 0, 0
	for i := range w.Requests {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r := &w.Requests[i]
		leading, _ := c.Leading(r.Blocks, 0)
		hit, all = hit+min(leading*workload.BlockTokens, r.InputTokens), all+r.InputTokens
		c.InsertFromRoot(r.Blocks)
	}
	if all == 0 {
		return 0, nil
	}
	return float64(hit) / float64(all), nil
}
