package stats

import (
	"math"
	"slices"
)

// Mean is 0 for no values.
func Mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Deviation is the sample's standard deviation, 0 for fewer than two values.
func Deviation(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	mean, sum := Mean(values), 0.0
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(values)-1))
}

// Quantile is the smallest value that at least a share q of all do not exceed; 0
// for no values. The values are sorted.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	i := int(math.Ceil(q*float64(len(values)))) - 1
	return values[min(max(i, 0), len(values)-1)]
}

// Within is the share of values that do not exceed a limit; 0 for no values.
func Within(values []float64, limit float64) float64 {
	n := 0
	for _, v := range values {
		if v <= limit {
			n++
		}
	}
	return Ratio(float64(n), float64(len(values)))
}

// Ratio is a/b, and 0 for b = 0, so that a result can always be written as JSON.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Correlation is Pearson's, 0 where one side does not vary.
//
// REQUIRES: as many a as b.
func Correlation(a, b []float64) float64 {
	ma, mb := Mean(a), Mean(b)
	var ab, aa, bb float64
	for i := range a {
		ab += (a[i] - ma) * (b[i] - mb)
		aa += (a[i] - ma) * (a[i] - ma)
		bb += (b[i] - mb) * (b[i] - mb)
	}
	return Ratio(ab, math.Sqrt(aa*bb))
}
