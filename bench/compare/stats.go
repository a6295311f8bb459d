package compare

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Median of the values; NaN of none.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile interpolates between the values around q; NaN of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 == len(sorted) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Interval is a value with the bounds of its 95 % bootstrap interval.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// resamples of a bootstrap: the bounds then move by a few hundredths of the
// interval's width from seed to seed.
const resamples = 2000

// Bootstrap estimates statistic over n pairs. statistic gets indices of pairs, all
// of them once for the value and n drawn with repetition for each resample, so that
// whatever it reads of a pair stays together.
func Bootstrap(n int, seed uint64, statistic func(pairs []int) float64) Interval {
	if n == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
	}
	pairs := make([]int, n)
	for i := range pairs {
		pairs[i] = i
	}
	result := Interval{Value: statistic(pairs)}
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	found := make([]float64, resamples)
	for r := range found {
		for i := range pairs {
			pairs[i] = rng.IntN(n)
		}
		found[r] = statistic(pairs)
	}
	result.Low, result.High = Quantile(found, 0.025), Quantile(found, 0.975)
	return result
}

// Pick is a pair of a group, both by index.
type Pick struct{ Group, Pair int }

// BootstrapGroups is Bootstrap for pairs that were measured in groups, whose pairs have
// more in common than the time of day: groups are drawn first, and then pairs of each
// that was drawn. sizes are how many pairs groups have. One group says nothing of how
// groups vary; the interval is then over its pairs.
func BootstrapGroups(sizes []int, seed uint64, statistic func(picks []Pick) float64) Interval {
	var picks []Pick
	for g, n := range sizes {
		for i := range n {
			picks = append(picks, Pick{g, i})
		}
	}
	if len(picks) == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
	}
	result := Interval{Value: statistic(picks)}
	rng := rand.New(rand.NewPCG(seed, uint64(len(picks))))
	var found []float64
	for range resamples {
		picks = picks[:0]
		for range sizes {
			g := rng.IntN(len(sizes))
			for range sizes[g] {
				picks = append(picks, Pick{g, rng.IntN(sizes[g])})
			}
		}
		if len(picks) > 0 { // groups may be empty
			found = append(found, statistic(picks))
		}
	}
	result.Low, result.High = Quantile(found, 0.025), Quantile(found, 0.975)
	return result
}

// medianOf is the median of what value says about the pairs.
func medianOf(pairs []int, value func(pair int) float64) float64 {
	values := make([]float64, len(pairs))
	for i, pair := range pairs {
		values[i] = value(pair)
	}
	return Median(values)
}
