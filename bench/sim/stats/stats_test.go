package stats

import (
	"math"
	"testing"
)

func TestStats(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for name, c := range map[string][2]float64{
		"mean":                {Mean(v), 2.5},
		"mean of none":        {Mean(nil), 0},
		"deviation":           {Deviation(v), math.Sqrt(5.0 / 3)},
		"deviation of one":    {Deviation(v[:1]), 0},
		"median":              {Quantile(v, .5), 2},
		"P90":                 {Quantile(v, .9), 4},
		"least":               {Quantile(v, 0), 1},
		"quantile of none":    {Quantile(nil, .5), 0},
		"within":              {Within(v, 2), .5},
		"within of none":      {Within(nil, 2), 0},
		"nothing by nothing":  {Ratio(1, 0), 0},
		"correlation":         {Correlation([]float64{1, 2, 3}, []float64{2, 4, 6}), 1},
		"the other way round": {Correlation([]float64{1, 2, 3}, []float64{6, 4, 2}), -1},
		"of a constant":       {Correlation([]float64{1, 2, 3}, []float64{6, 6, 6}), 0},
		"at right angles":     {Correlation([]float64{1, 2, 1, 2}, []float64{1, 1, 2, 2}), 0},
	} {
		if math.Abs(c[0]-c[1]) > 1e-12 {
			t.Errorf("%s: %v, want %v", name, c[0], c[1])
		}
	}
}
