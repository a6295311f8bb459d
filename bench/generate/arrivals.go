package generate

import (
	"math"
	"math/rand/v2"
)

// arrivalTimes draws timestamps: gaps of a gamma distribution, whose variance gives
// counts their dispersion, in a time that runs as the parts' rates.
type arrivalTimes struct {
	a   *Arrivals
	rng *rand.Rand
	// done is the requests' share of all that the rates let expect, whole the parts' sum.
	done, step, whole float64
	spanMS            float64
}

func newArrivals(a *Arrivals, n int, rng *rand.Rand) *arrivalTimes {
	t := &arrivalTimes{a: a, rng: rng, step: 1 / float64(max(n, 1)), spanMS: float64(n) / a.RatePerS * 1e3}
	for _, part := range a.Parts {
		t.whole += part
	}
	return t
}

// next is a timestamp, not before the one before. The first is 0.
func (t *arrivalTimes) next() int64 {
	at := t.time(t.done)
	shape := 1 / t.a.Dispersion
	t.done += t.step * gamma(t.rng, shape) / shape
	return int64(at) / t.a.GridMS * t.a.GridMS
}

// time is when a share of the requests has come; the rates begin again behind the
// last part.
func (t *arrivalTimes) time(share float64) float64 {
	rounds := math.Floor(share)
	left := (share - rounds) * t.whole
	width := t.spanMS / float64(len(t.a.Parts))
	at := rounds * t.spanMS
	for _, part := range t.a.Parts {
		if left < part {
			return at + width*left/part
		}
		left -= part
		at += width
	}
	return at
}

// gamma draws from the gamma distribution of a shape and scale 1 (Marsaglia and
// Tsang's method; a shape below 1 from the one above it).
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(1-rng.Float64(), 1/shape)
	}
	d := shape - 1./3
	c := 1 / math.Sqrt(9*d)
	for {
		z := rng.NormFloat64()
		v := 1 + c*z
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < z*z/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
