package generate

import (
	"fmt"
	"math"
	"slices"
)

// bins of a fitted distribution: the longest quarter of a percent is one.
const bins = 256

// Quantiles is a distribution: its values at equal steps of probability from 0 to
// 1, straight lines between them. One value is a constant.
type Quantiles []float64

// fitQuantiles sorts values.
func fitQuantiles(values []float64) Quantiles {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	q := make(Quantiles, min(bins, len(values))+1)
	for i := range q {
		at := float64(i) / float64(len(q)-1) * float64(len(values)-1)
		low := int(at)
		q[i] = values[low]
		if low+1 < len(values) {
			q[i] += (at - float64(low)) * (values[low+1] - values[low])
		}
	}
	return q
}

// At is the value at a probability.
func (q Quantiles) At(p float64) float64 {
	if len(q) == 1 {
		return q[0]
	}
	at := min(max(p, 0), 1) * float64(len(q)-1)
	low := min(int(at), len(q)-2)
	return q[low] + (at-float64(low))*(q[low+1]-q[low])
}

// Rank is the probability of a smaller value, and of half the equal ones.
func (q Quantiles) Rank(v float64) float64 {
	below, _ := slices.BinarySearch(q, v)
	above := below
	for above < len(q) && q[above] == v {
		above++
	}
	if above > below { // from the first equal value to the last
		return float64(below+above-1) / 2 / float64(max(1, len(q)-1))
	}
	if below == 0 || below == len(q) {
		return float64(below / len(q))
	}
	return (float64(below-1) + (v-q[below-1])/(q[below]-q[below-1])) / float64(len(q)-1)
}

// Mean of the distribution.
func (q Quantiles) Mean() float64 {
	if len(q) == 1 {
		return q[0]
	}
	sum := (q[0] + q[len(q)-1]) / 2
	for _, v := range q[1 : len(q)-1] {
		sum += v
	}
	return sum / float64(len(q)-1)
}

// check wants values within bounds that do not fall.
func (q Quantiles) check(name string, low, high float64) error {
	if len(q) == 0 || len(q) > 1<<16 {
		return fmt.Errorf("%w: %s has %d values", ErrProfile, name, len(q))
	}
	for i, v := range q {
		if !(v >= low && v <= high) || i > 0 && v < q[i-1] {
			return fmt.Errorf("%w: %s: value %d is %g; want rising ones from %g to %g", ErrProfile, name, i, v, low, high)
		}
	}
	return nil
}

// logNormal has a mean, and a deviation of the logarithm; the outer half percents
// are cut off.
func logNormal(mean, sigma float64) Quantiles {
	q := make(Quantiles, bins+1)
	for i := range q {
		q[i] = math.Exp(sigma * score(.005+.99*float64(i)/bins))
	}
	scale := mean / q.Mean()
	for i := range q {
		q[i] *= scale
	}
	return q
}

// phi is the standard normal distribution.
func phi(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// score is phi's inverse; a probability of 0 or 1 is taken as next to it.
func score(p float64) float64 {
	const least = 1e-9
	return math.Sqrt2 * math.Erfinv(2*min(max(p, least), 1-least)-1)
}

// correlation of the ranks of pairs, as that of two normal variables: what draws
// the second beside the first. 0 where one does not vary.
func correlation(a, b []float64) float64 {
	x, y := scores(a), scores(b)
	var xy, xx, yy float64
	for i := range x {
		xy, xx, yy = xy+x[i]*y[i], xx+x[i]*x[i], yy+y[i]*y[i]
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}

// scores are the normal scores of values' ranks; equal values share their middle.
func scores(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case values[i] < values[j]:
			return -1
		case values[i] > values[j]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(values))
	for begin := 0; begin < len(order); {
		end := begin + 1
		for end < len(order) && values[order[end]] == values[order[begin]] {
			end++
		}
		for _, i := range order[begin:end] {
			out[i] = score(float64(begin+end) / 2 / float64(len(order)))
		}
		begin = end
	}
	return out
}
