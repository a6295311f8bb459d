package report

import (
	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
)

// Versus compares times to first token with those of an earlier replay of the same
// trace, request by request. Ratios below 1 are faster than the baseline; intervals
// are 95 % bootstrap intervals over requests.
type Versus struct {
	Baseline string `json:"baseline"`
	Pairs    int    `json:"pairs"`
	// MeanRatio is of the means, MedianRatio the median of the requests' ratios.
	MeanRatio   *compare.Interval `json:"mean_ttft_ratio,omitempty"`
	MedianRatio *compare.Interval `json:"median_of_ttft_ratios,omitempty"`
}

// Compare adds the comparison to the report.
func (r *Report) Compare(name string, baseline Baseline) {
	var ours, theirs []float64
	for i := range r.outcomes {
		o := &r.outcomes[i]
		before, there := baseline[o.Line]
		if o.Err != nil || o.First == record.Never || !there || before == 0 || o.TTFT() <= 0 {
			continue
		}
		ours, theirs = append(ours, milli(o.TTFT())), append(theirs, before)
	}
	r.Versus = &Versus{Baseline: name, Pairs: len(ours)}
	if len(ours) == 0 {
		return // there is no ratio of nothing
	}
	mean := compare.Bootstrap(len(ours), r.Setup.Seed, func(pairs []int) float64 {
		a, b := 0.0, 0.0
		for _, i := range pairs {
			a, b = a+ours[i], b+theirs[i]
		}
		return a / b
	})
	median := compare.Bootstrap(len(ours), r.Setup.Seed, func(pairs []int) float64 {
		ratios := make([]float64, len(pairs))
		for k, i := range pairs {
			ratios[k] = ours[i] / theirs[i]
		}
		return compare.Median(ratios)
	})
	r.Versus.MeanRatio, r.Versus.MedianRatio = &mean, &median
}
