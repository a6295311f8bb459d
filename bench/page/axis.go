package page

import (
	"fmt"
	"math"
)

// mostTicks of a linear axis, roughly.
const mostTicks = 6

// axis maps values to pixels.
type axis struct {
	low, high, from, to float64
	log                 bool
}

// axisOf spans the values that can be shown: finite and, on a logarithmic axis,
// positive. A linear axis has 0.
func axisOf(values []float64, log bool, from, to float64) axis {
	a := axis{low: math.Inf(1), high: math.Inf(-1), from: from, to: to, log: log}
	for _, v := range values {
		if finite(v) && (!log || v > 0) {
			a.low, a.high = min(a.low, v), max(a.high, v)
		}
	}
	if a.low > a.high {
		a.low, a.high = 1, 2
	}
	if !log {
		a.low, a.high = min(a.low, 0), max(a.high, 0)
	}
	if a.low == a.high {
		a.high = a.low*2 + 1
	}
	return a
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// shows tells whether a value is on the axis.
func (a *axis) shows(v float64) bool { return v >= a.low && v <= a.high }

func (a *axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// ticks are round values on the axis: with a logarithmic one each power of ten and,
// where these are few, twice and five times it.
func (a *axis) ticks() []float64 {
	var ticks []float64
	if a.log {
		digits := []float64{1, 2, 5}
		if a.high/a.low > 1e4 {
			digits = digits[:1]
		}
		for power := math.Floor(math.Log10(a.low)); power <= math.Log10(a.high); power++ {
			for _, digit := range digits {
				if v := digit * math.Pow(10, power); v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
					ticks = append(ticks, v)
				}
			}
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/mostTicks)))
	for _, coarser := range []float64{2, 2.5, 2} {
		if (a.high-a.low)/step <= mostTicks {
			break
		}
		step *= coarser
	}
	for n := math.Ceil(a.low / step); n*step <= a.high*(1+1e-9); n++ {
		ticks = append(ticks, n*step)
	}
	return ticks
}

// short is a tick's label.
func short(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%.4gk", v/1e3)
	case math.Abs(v) < 1e-12: // what adding steps up leaves of 0
		return "0"
	}
	return fmt.Sprintf("%.4g", v)
}
