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

// TestBootstrapGroups: where groups differ and pairs of a group do not, the interval
// is the groups'; with one group it is its pairs'.
func TestBootstrapGroups(t *testing.T) {
	values := [][]float64{{1, 1, 1}, {3, 3, 3}, {2, 2, 2}}
	mean := func(picks []Pick) float64 {
		sum := 0.0
		for _, p := range picks {
			sum += values[p.Group][p.Pair]
		}
		return sum / float64(len(picks))
	}
	i := BootstrapGroups([]int{3, 3, 3}, 1, mean)
	if i.Value != 2 || i.Low > 1.34 || i.Low < 1 || i.High < 2.66 || i.High > 3 {
		t.Errorf("groups that differ: %+v", i)
	}
	if flat := BootstrapGroups([]int{3}, 1, mean); flat != (Interval{1, 1, 1}) {
		t.Errorf("one group of equals: %+v", flat)
	}
	values = [][]float64{{1, 2, 3}}
	if i := BootstrapGroups([]int{3}, 1, mean); i.Value != 2 || i.Low >= i.Value || i.High <= i.Value {
		t.Errorf("one group: %+v", i)
	}
	if i := BootstrapGroups(nil, 1, mean); !math.IsNaN(i.Value) {
		t.Errorf("no group: %+v", i)
	}
	if again := BootstrapGroups([]int{3}, 1, mean); again != BootstrapGroups([]int{3}, 1, mean) {
		t.Error("the same seed gives another interval")
	}
}
