package compare

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 2, 3}, 0.5, 2.5},
		{[]float64{7}, 0.99, 7},
		{[]float64{0, 10}, 0.99, 9.9},
		{[]float64{5, 1}, 0, 1},
		{[]float64{5, 1}, 1, 5},
	} {
		if got := Quantile(test.values, test.q); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("Quantile(%v, %g) = %g, not %g", test.values, test.q, got, test.want)
		}
	}
	values := []float64{3, 1, 2}
	if Median(values); values[0] != 3 {
		t.Error("Median reordered its argument")
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestBootstrap(t *testing.T) {
	constant := Bootstrap(5, 1, func(pairs []int) float64 { return 4 })
	if constant != (Interval{4, 4, 4}) {
		t.Errorf("of a constant: %v", constant)
	}
	if one := Bootstrap(1, 1, func(pairs []int) float64 { return float64(pairs[0]) }); one != (Interval{0, 0, 0}) {
		t.Errorf("of one pair: %v", one)
	}
	if none := Bootstrap(0, 1, func([]int) float64 { return 1 }); !math.IsNaN(none.Value) {
		t.Errorf("of nothing: %v", none)
	}
	// Whatever statistic reads of a pair stays together: differences within pairs are exact.
	a := []float64{1, 50, 7, 300, 2, 90}
	paired := Bootstrap(len(a), 1, func(pairs []int) float64 {
		return medianOf(pairs, func(i int) float64 { return (a[i] + 3) - a[i] })
	})
	if paired != (Interval{3, 3, 3}) {
		t.Errorf("of differences within pairs: %v", paired)
	}
	again := func(seed uint64) Interval {
		return Bootstrap(len(a), seed, func(pairs []int) float64 { return medianOf(pairs, func(i int) float64 { return a[i] }) })
	}
	if again(3) != again(3) {
		t.Error("the same seed gives different bounds")
	}
}

// An interval that is said to hold the truth in 95 of 100 cases must do so, about.
func TestBootstrapCoverage(t *testing.T) {
	const runs, n = 100, 40
	rng := rand.New(rand.NewPCG(1, 2))
	held := 0
	for run := range runs {
		sample := make([]float64, n)
		for i := range sample {
			sample[i] = rng.ExpFloat64()
		}
		interval := Bootstrap(n, uint64(run), func(pairs []int) float64 { return medianOf(pairs, func(i int) float64 { return sample[i] }) })
		if interval.Low <= math.Ln2 && math.Ln2 <= interval.High {
			held++
		}
	}
	if held < runs*87/100 {
		t.Errorf("%d of %d intervals hold the median", held, runs)
	}
}
