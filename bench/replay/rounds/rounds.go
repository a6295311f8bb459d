package rounds

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/report"
)

// ErrRounds: replays that can't be put together.
var ErrRounds = errors.New("no rounds of replays")

// Replay is one of the replays.
type Replay struct {
	System   string
	Round    int
	Requests []report.Request
}

// Result is what a trace's replays come to.
type Result struct {
	Trace string `json:"trace"`
	// Baseline is the system that ratios are to.
	Baseline string   `json:"baseline"`
	Rounds   int      `json:"rounds"`
	Systems  []System `json:"systems"`
}

// System is what one store showed.
type System struct {
	Name string `json:"name"`
	// Requests of all rounds, and of them answered.
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	// CachedTokens of answered requests, and what a cache that never evicts must have.
	CachedTokens int64 `json:"cached_tokens"`
	MustTokens   int64 `json:"must_tokens"`
	// AsExpected are the answered requests with exactly as many.
	AsExpected int `json:"as_expected"`
	// Times to first token in milliseconds.
	MeanMS   float64 `json:"mean_ms"`
	MedianMS float64 `json:"median_ms"`
	P99MS    float64 `json:"p99_ms"`
	// Pairs are requests that the baseline answered too, in the same round.
	Pairs int `json:"pairs,omitempty"`
	// MeanRatio is of the means, MedianRatio the median of the requests' ratios; nil for
	// the baseline and without pairs.
	MeanRatio   *compare.Interval `json:"mean_ttft_ratio,omitempty"`
	MedianRatio *compare.Interval `json:"median_of_ttft_ratios,omitempty"`
	// SharedPairs are those pairs of which something must be cached, SharedRatio that of
	// their means.
	SharedPairs int               `json:"shared_pairs,omitempty"`
	SharedRatio *compare.Interval `json:"mean_ttft_ratio_of_shared,omitempty"`
	// ByRound are the ratios of the means of each round.
	ByRound []float64 `json:"mean_ttft_ratio_by_round,omitempty"`

	times []float64 // of answered requests, sorted
}

// pair is a request that two systems answered in one round.
type pair struct {
	ours, base float64
	shared     bool
}

// Sum puts replays together. The baseline's come first in the result if there are any.
func Sum(trace, baseline string, seed uint64, replays []Replay) (*Result, error) {
	if len(replays) == 0 {
		return nil, fmt.Errorf("%w: there is none", ErrRounds)
	}
	result := &Result{Trace: trace, Baseline: baseline}
	base := map[int]map[int]*report.Request{} // by round and line
	var names []string
	seen := map[string]map[int]bool{}
	for i := range replays {
		r := &replays[i]
		if seen[r.System] == nil {
			names, seen[r.System] = append(names, r.System), map[int]bool{}
		}
		if seen[r.System][r.Round] {
			return nil, fmt.Errorf("%w: %s has round %d twice", ErrRounds, r.System, r.Round)
		}
		seen[r.System][r.Round] = true
		result.Rounds = max(result.Rounds, len(seen[r.System]))
		if r.System == baseline {
			base[r.Round] = map[int]*report.Request{}
			for j := range r.Requests {
				base[r.Round][r.Requests[j].Line] = &r.Requests[j]
			}
		}
	}
	for _, name := range names {
		s := System{Name: name}
		s.sum(replays, base, name == baseline, seed)
		result.Systems = append(result.Systems, s)
	}
	slices.SortStableFunc(result.Systems, func(a, b System) int {
		switch baseline {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return 0
	})
	return result, nil
}

func (s *System) sum(replays []Replay, base map[int]map[int]*report.Request, isBase bool, seed uint64) {
	var groups, shared [][]pair
	for i := range replays {
		if replays[i].System != s.Name {
			continue
		}
		var all, some []pair
		for j := range replays[i].Requests {
			q := &replays[i].Requests[j]
			s.Requests++
			if q.Failed {
				continue
			}
			s.Answered++
			s.times = append(s.times, q.TTFTms)
			if q.CachedTokens != client.Unknown {
				s.CachedTokens += int64(q.CachedTokens)
				s.MustTokens += int64(q.MustTokens)
				if q.CachedTokens == q.MustTokens {
					s.AsExpected++
				}
			}
			other := base[replays[i].Round][q.Line]
			if isBase || other == nil || other.Failed || other.TTFTms <= 0 || q.TTFTms <= 0 {
				continue
			}
			p := pair{q.TTFTms, other.TTFTms, q.MustTokens > 0}
			all = append(all, p)
			if p.shared {
				some = append(some, p)
			}
		}
		groups, shared = append(groups, all), append(shared, some)
	}
	slices.Sort(s.times)
	if n := float64(len(s.times)); n > 0 { // JSON has no NaN
		s.MedianMS, s.P99MS = compare.Quantile(s.times, .5), compare.Quantile(s.times, .99)
		for _, t := range s.times {
			s.MeanMS += t / n
		}
	}
	s.Pairs, s.MeanRatio = ratioOf(groups, seed, ofMeans)
	_, s.MedianRatio = ratioOf(groups, seed, ofMedians)
	s.SharedPairs, s.SharedRatio = ratioOf(shared, seed, ofMeans)
	for _, g := range groups {
		if len(g) > 0 {
			s.ByRound = append(s.ByRound, ofMeans(g))
		}
	}
}

// ratioOf groups of pairs, nil of none.
func ratioOf(groups [][]pair, seed uint64, statistic func([]pair) float64) (n int, ratio *compare.Interval) {
	sizes := make([]int, len(groups))
	for g := range groups {
		sizes[g] = len(groups[g])
		n += sizes[g]
	}
	if n == 0 {
		return 0, nil
	}
	i := compare.BootstrapGroups(sizes, seed, func(picks []compare.Pick) float64 {
		chosen := make([]pair, len(picks))
		for k, p := range picks {
			chosen[k] = groups[p.Group][p.Pair]
		}
		return statistic(chosen)
	})
	return n, &i
}

func ofMeans(pairs []pair) float64 {
	a, b := 0.0, 0.0
	for _, p := range pairs {
		a, b = a+p.ours, b+p.base
	}
	return a / b
}

func ofMedians(pairs []pair) float64 {
	ratios := make([]float64, len(pairs))
	for i, p := range pairs {
		ratios[i] = p.ours / p.base
	}
	return compare.Median(ratios)
}
