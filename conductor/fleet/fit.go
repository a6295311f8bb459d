package fleet

import "math"

// terms of a model. Each model uses as many as it has.
const terms = 4

// vector has a model's features, scaled to be about one, or its coefficients in seconds.
type vector [terms]float64

func (v *vector) dot(w *vector) float64 {
	sum := 0.0
	for i := range v {
		sum += v[i] * w[i]
	}
	return sum
}

func (v *vector) add(w *vector) {
	for i := range v {
		v[i] += w[i]
	}
}

// fit is a linear model of a duration that is fitted to one observation after the
// other. No coefficient is negative: time that more work takes away is noise.
type fit struct {
	prior, coefficients vector
	// bound puts coefficients right that can't be; nil: all can be that are not negative.
	bound func(*vector)
	// products and sums are those of the normal equations, with older observations
	// counting less.
	products [terms]vector
	sums     vector
	// deviation is the usual relative error, as a moving mean.
	deviation float64
	seen      int
}

const (
	// remember is the weight that an observation keeps with each that comes after it.
	remember = 0.99
	// priorWeight is how many observations the prior stands for; little, but it decides what
	// was not seen.
	priorWeight = 0.05
	// usual deviations beyond which an observation counts as if it were there.
	usual = 3
	// sureAfter observations an outlier is one; until then it may be that we are wrong.
	sureAfter = 16
	// shortest is what durations are at least, seconds, so that relative errors are some.
	shortest = 1e-4
)

func newFit(prior vector, bound func(*vector)) *fit {
	return &fit{prior: prior, coefficients: prior, bound: bound, deviation: 1}
}

// observe takes account of a duration in seconds of something with these features. share
// is 1, or less if several tell of the same.
func (f *fit) observe(x *vector, seconds, share float64) {
	if !(seconds > 0) || math.IsInf(seconds, 1) {
		return
	}
	seconds = max(seconds, shortest)
	expected := x.dot(&f.coefficients)
	if off := math.Abs(seconds-expected) / seconds; f.seen >= sureAfter {
		if limit := usual * max(f.deviation, 0.05) * max(expected, shortest); math.Abs(seconds-expected) > limit {
			seconds = expected + math.Copysign(limit, seconds-expected)
		}
		f.deviation += (min(off, 4) - f.deviation) / sureAfter
	} else {
		f.deviation += (min(off, 4) - f.deviation) / float64(f.seen+1)
	}
	f.seen++
	weight, kept := share/(seconds*seconds), 1-(1-remember)*share
	for i := range f.products {
		for j := range f.products[i] {
			f.products[i][j] = kept*f.products[i][j] + weight*x[i]*x[j]
		}
		f.sums[i] = kept*f.sums[i] + weight*x[i]*seconds
	}
	f.solve()
}

// rounds of descent: a few dozen suffice for four terms that start near the answer.
const rounds = 40

// solve finds the coefficients with the least weighted squares, one coordinate after
// the other. The prior pulls in relation to what was found last: it may be wrong by
// orders of magnitude.
func (f *fit) solve() {
	scale := f.coefficients
	for range rounds {
		for i := range f.coefficients {
			size := max(f.prior[i], scale[i], 1e-6)
			pull := priorWeight / (size * size)
			rest := f.sums[i] + pull*f.prior[i]
			for j := range f.coefficients {
				if j != i {
					rest -= f.products[i][j] * f.coefficients[j]
				}
			}
			f.coefficients[i] = max(rest/(f.products[i][i]+pull), 0)
		}
	}
	if f.bound != nil {
		f.bound(&f.coefficients)
	}
}
