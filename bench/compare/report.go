package compare

import (
	"fmt"
	"math"
	"slices"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

// Report is what a run found, with the samples that its figures come from.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Options Options       `json:"options"`
	Warm    []WarmRow     `json:"warm,omitempty"`
	Cold    []ColdRow     `json:"cold,omitempty"`
	Overlap []OverlapRow  `json:"overlap,omitempty"`
	Targets []TargetCheck `json:"targets,omitempty"`
	// DisturbedPairs were measured beside other work, since it did not end.
	DisturbedPairs int    `json:"disturbed_pairs"`
	Pairs          []Pair `json:"pairs"`
}

// WarmRow is a system's overhead of a warm hit. Times are medians in milliseconds.
type WarmRow struct {
	Cell
	System       string   `json:"system"`
	Pairs        int      `json:"pairs"`
	StoreWarmMs  float64  `json:"store_warm_ms"`
	EngineWarmMs float64  `json:"engine_warm_ms"`
	OverheadMs   Interval `json:"overhead_ms"`
	// OverNullMs is what it adds to the null connector's overhead.
	OverNullMs *Interval `json:"over_null_ms,omitempty"`
	// LeastCachedTokens of a store-warm request: fewer than the others means lookups
	// that missed or coarser chunks, whose cost is in the overhead.
	LeastCachedTokens int `json:"least_cached_tokens"`
	WrongOutputs      int `json:"wrong_outputs"`
}

// ColdRow is a system's time to first token of unknown prompts.
type ColdRow struct {
	Cell
	System string  `json:"system"`
	Pairs  int     `json:"pairs"`
	TTFTMs float64 `json:"ttft_ms"`
	// Ratio is the median over pairs of this system's time by the engine's alone.
	Ratio Interval `json:"ratio"`
}

// OverlapRow is a system under arriving prompts.
type OverlapRow struct {
	Cell
	System   string   `json:"system"`
	Rounds   int      `json:"rounds"`
	MedianMs Interval `json:"median_ms"`
	P99Ms    Interval `json:"p99_ms"`
	// MedianRatio is of requests at the same place in the same round.
	MedianRatio Interval `json:"median_ratio"`
	GapP99Ms    float64  `json:"gap_p99_ms"`
	CPUSeconds  Interval `json:"cpu_seconds"`
	CPURatio    Interval `json:"cpu_ratio"`
}

// TargetCheck says whether a target of ours is met. Value and Limit are of the
// medians; Excess is what ours is above the limit, with its interval. With a
// wrong output of ours, which may have been quick, a target is not met.
type TargetCheck struct {
	Cell
	What   string   `json:"what"`
	Value  float64  `json:"value"`
	Limit  float64  `json:"limit"`
	Excess Interval `json:"excess"`
	Met    bool     `json:"met"`
}

// coldLimit is the cold penalty that we allow ourselves at most.
const coldLimit = 1.03

// remoteLimits are the shares of the in-tree connector's overhead that ours may
// have when both load from one cluster, by model.
var remoteLimits = map[string]float64{"kv2k": 0.75, "kv64k": 0.5}

// NewReport computes all figures.
func NewReport(at machine.Facts, options Options, pairs []Pair) *Report {
	r := &Report{Machine: at, Options: options, Pairs: pairs}
	for _, pair := range pairs {
		if pair.OthersShare > options.MaxOthers {
			r.DisturbedPairs++
		}
	}
	for _, part := range options.Parts {
		for _, model := range options.Models {
			for _, tokens := range options.Tokens {
				cell := Cell{part, model, tokens}
				chosen := slices.DeleteFunc(slices.Clone(pairs), func(p Pair) bool { return p.Cell != cell })
				if len(chosen) == 0 {
					continue
				}
				f := figures{cell, chosen, options.Seed, options.Cluster}
				switch part {
				case PartWarm:
					r.Warm = append(r.Warm, f.warm(options.With)...)
				case PartCold:
					r.Cold = append(r.Cold, f.cold(options.With)...)
				default:
					r.Overlap = append(r.Overlap, f.overlap(options.With)...)
				}
				if check := f.target(options.With); check != nil {
					r.Targets = append(r.Targets, *check)
				}
			}
		}
	}
	return r
}

// figures computes a cell's rows.
//
// INVARIANT: every pair has seen every participant.
type figures struct {
	cell  Cell
	pairs []Pair
	seed  uint64
	// remote: what is loaded comes from a cluster.
	remote bool
}

func (f figures) bootstrap(statistic func(pairs []int) float64) Interval {
	return Bootstrap(len(f.pairs), f.seed, statistic)
}

// saw tells whether the system took part.
func (f figures) saw(system string) bool {
	_, ok := f.pairs[0].Seen[system]
	return ok
}

func (f figures) median(pairs []int, system string, value func(Seen) float64) float64 {
	return medianOf(pairs, func(i int) float64 { return value(f.pairs[i].Seen[system]) })
}

func (f figures) overhead(pairs []int, system string) float64 {
	return f.median(pairs, system, Seen.overheadMs)
}

func (f figures) warm(systems []string) []WarmRow {
	all := everyIndex(f.pairs)
	var rows []WarmRow
	for _, system := range systems {
		if !f.saw(system) {
			continue
		}
		row := WarmRow{
			Cell: f.cell, System: system, Pairs: len(f.pairs), LeastCachedTokens: math.MaxInt,
			StoreWarmMs:  f.median(all, system, func(s Seen) float64 { return s.StoreWarmMs }),
			EngineWarmMs: f.median(all, system, func(s Seen) float64 { return s.EngineWarmMs }),
			OverheadMs:   f.bootstrap(func(pairs []int) float64 { return f.overhead(pairs, system) }),
		}
		if f.saw(Null) && system != Null {
			over := f.bootstrap(func(pairs []int) float64 { return f.overhead(pairs, system) - f.overhead(pairs, Null) })
			row.OverNullMs = &over
		}
		for _, pair := range f.pairs {
			seen := pair.Seen[system]
			row.LeastCachedTokens = min(row.LeastCachedTokens, seen.CachedTokens)
			if seen.Wrong != "" {
				row.WrongOutputs++
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func (f figures) ratio(pairs []int, system string) float64 {
	return medianOf(pairs, func(i int) float64 { return f.pairs[i].Seen[system].TTFTMs[0] / f.pairs[i].Seen[None].TTFTMs[0] })
}

func (f figures) cold(systems []string) []ColdRow {
	var rows []ColdRow
	for _, system := range systems {
		if f.saw(system) {
			rows = append(rows, ColdRow{
				Cell: f.cell, System: system, Pairs: len(f.pairs),
				TTFTMs: f.median(everyIndex(f.pairs), system, func(s Seen) float64 { return s.TTFTMs[0] }),
				Ratio:  f.bootstrap(func(pairs []int) float64 { return f.ratio(pairs, system) }),
			})
		}
	}
	return rows
}

// pooled collects all times of rounds.
func (f figures) pooled(rounds []int, times func(round int) []float64) []float64 {
	var all []float64
	for _, round := range rounds {
		all = append(all, times(round)...)
	}
	return all
}

func (f figures) overlap(systems []string) []OverlapRow {
	var rows []OverlapRow
	for _, system := range systems {
		if !f.saw(system) {
			continue
		}
		times := func(round int) []float64 { return f.pairs[round].Seen[system].TTFTMs }
		ratios := func(round int) []float64 {
			own, alone := times(round), f.pairs[round].Seen[None].TTFTMs
			by := make([]float64, len(own))
			for i := range own {
				by[i] = own[i] / alone[i]
			}
			return by
		}
		cpu := func(s Seen) float64 { return s.CPUSeconds }
		rows = append(rows, OverlapRow{
			Cell: f.cell, System: system, Rounds: len(f.pairs),
			MedianMs:    f.bootstrap(func(rounds []int) float64 { return Median(f.pooled(rounds, times)) }),
			P99Ms:       f.bootstrap(func(rounds []int) float64 { return Quantile(f.pooled(rounds, times), 0.99) }),
			MedianRatio: f.bootstrap(func(rounds []int) float64 { return Median(f.pooled(rounds, ratios)) }),
			GapP99Ms: Quantile(f.pooled(everyIndex(f.pairs), func(round int) []float64 {
				return f.pairs[round].Seen[system].GapMs
			}), 0.99),
			CPUSeconds: f.bootstrap(func(rounds []int) float64 { return f.median(rounds, system, cpu) }),
			CPURatio: f.bootstrap(func(rounds []int) float64 {
				return medianOf(rounds, func(i int) float64 { return f.pairs[i].Seen[system].CPUSeconds / f.pairs[i].Seen[None].CPUSeconds })
			}),
		})
	}
	return rows
}

// target checks ours against the better of the peers that took part, nil without.
func (f figures) target(systems []string) *TargetCheck {
	peers := slices.DeleteFunc(slices.Clone(systems), func(s string) bool { return s != InTree && s != LMCache || !f.saw(s) })
	if !f.saw(Ours) || len(peers) == 0 {
		return nil
	}
	best := func(pairs []int, figure func([]int, string) float64) float64 {
		least := math.Inf(1)
		for _, peer := range peers {
			least = min(least, figure(pairs, peer))
		}
		return least
	}
	var what string
	var value, limit func(pairs []int) float64
	switch {
	case f.cell.Part == PartWarm && f.remote && f.saw(InTree):
		share := remoteLimits[f.cell.Model]
		what = fmt.Sprintf("overhead in ms: at most %.2g of the in-tree connector's on the same cluster", share)
		value = func(pairs []int) float64 { return f.overhead(pairs, Ours) }
		limit = func(pairs []int) float64 { return share * f.overhead(pairs, InTree) }
	case f.cell.Part == PartWarm && !f.remote && f.saw(Null):
		what = "overhead in ms: at most the null connector's and half of what the better peer adds to it"
		value = func(pairs []int) float64 { return f.overhead(pairs, Ours) }
		limit = func(pairs []int) float64 {
			floor := f.overhead(pairs, Null)
			return floor + (best(pairs, f.overhead)-floor)/2
		}
	case f.cell.Part == PartCold && f.saw(None):
		what = "cold by cold of the engine alone: at most 1.03, or the better peer's if that is less"
		value = func(pairs []int) float64 { return f.ratio(pairs, Ours) }
		limit = func(pairs []int) float64 { return min(coldLimit, best(pairs, f.ratio)) }
	default:
		return nil
	}
	all := everyIndex(f.pairs)
	check := &TargetCheck{Cell: f.cell, What: what, Value: value(all), Limit: limit(all)}
	check.Excess = f.bootstrap(func(pairs []int) float64 { return value(pairs) - limit(pairs) })
	wrong := slices.ContainsFunc(f.pairs, func(p Pair) bool { return p.Seen[Ours].Wrong != "" })
	check.Met = check.Excess.Value <= 0 && !wrong
	return check
}

func everyIndex(pairs []Pair) []int {
	indices := make([]int, len(pairs))
	for i := range indices {
		indices[i] = i
	}
	return indices
}
