package datapath

import (
	"fmt"
	"slices"
	"sort"
)

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Clone(list)
	sort.Float64s(sorted)
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// printTable prints medians by kind and build, and each build's wait over the
// first build's.
func printTable(o *Options, g geometry, samples []Sample) {
	fmt.Fprintf(o.Out, "%s: %d blocks of %d KiB in %d pieces, medians in us\n", g, g.blocks(), g.shardBytes()>>10, g.Layers)
	fmt.Fprintf(o.Out, "  %-10s %-16s %10s %10s %9s %8s %10s %8s %10s %8s %7s %4s\n",
		"kind", "build", "wait", "p90", "GB/s", "ask", "move", "rest", "cpu", "faults", "ratio", "n")
	var kinds []string
	for _, s := range samples {
		if !slices.Contains(kinds, s.Kind) {
			kinds = append(kinds, s.Kind)
		}
	}
	for _, kind := range kinds {
		base := 0.0
		for i, b := range append(slices.Clone(o.Builds), peerRows(o)...) {
			column := func(of func(Sample) float64) (out []float64) {
				for _, s := range samples {
					if s.Build == b.Name && s.Kind == kind {
						out = append(out, of(s))
					}
				}
				return out
			}
			walls := column(func(s Sample) float64 { return s.Wall })
			if len(walls) == 0 {
				continue // a peer has no such kind
			}
			sort.Float64s(walls)
			wall := median(walls)
			if i == 0 {
				base = wall
			}
			fmt.Fprintf(o.Out, "  %-10s %-16s %10.0f %10.0f %9.2f %8.0f %10.0f %8.0f %10.0f %8.0f %7.3f %4d\n", kind, b.Name, wall,
				walls[len(walls)*9/10], float64(g.bytes())/wall/1e3, median(column(func(s Sample) float64 { return s.Ask })),
				median(column(func(s Sample) float64 { return s.Move })),
				median(column(func(s Sample) float64 { return s.Wall - s.Ask - s.Move })), median(column(func(s Sample) float64 { return s.CPU })),
				median(column(func(s Sample) float64 { return s.Faults })), wall/base, len(walls))
		}
	}
}

// roundRatios returns, for each round that has both, what a build's median of one
// kind is of its median of another.
func roundRatios(o *Options, samples []Sample, build, kind, base string) (ratios []float64) {
	for round := range o.Rounds {
		of := func(kind string) (walls []float64) {
			for _, s := range samples {
				if s.Build == build && s.Kind == kind && s.Round == round {
					walls = append(walls, s.Wall)
				}
			}
			return walls
		}
		if under := median(of(base)); under > 0 {
			ratios = append(ratios, median(of(kind))/under)
		}
	}
	return ratios
}

// printYardsticks prints what a load and a store are of a one-thread copy of the
// same pieces: the median over rounds of the rounds' medians' ratio, and its
// extremes.
func printYardsticks(o *Options, samples []Sample) {
	for _, b := range o.Builds {
		for _, pair := range [][2]string{{"warm", "copy-in"}, {"restore", "copy-out"}, {"ahead", "copy-out"}} {
			ratios := roundRatios(o, samples, b.Name, pair[1], pair[0])
			if len(ratios) > 0 {
				fmt.Fprintf(o.Out, "  %-10s %-16s %.2f of a one-thread copy's speed (%.2f to %.2f over %d rounds)\n",
					pair[0], b.Name, median(ratios), slices.Min(ratios), slices.Max(ratios), len(ratios))
			}
		}
	}
}
