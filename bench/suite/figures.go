package suite

import (
	"math"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// figureOf is the median of samples between their tenths.
func figureOf(name, unit string, samples []float64) Figure {
	f := Figure{Name: name, Unit: unit, Value: compare.Median(samples), Samples: len(samples)}
	if len(samples) > 1 {
		f.Spread = spreadOf(samples)
	}
	return f
}

// spreadOf is the tenths of ten samples and more, the extremes of fewer.
func spreadOf(samples []float64) *Spread {
	if len(samples) < 10 {
		return &Spread{compare.Quantile(samples, 0), compare.Quantile(samples, 1), extremes}
	}
	return &Spread{compare.Quantile(samples, .1), compare.Quantile(samples, .9), tenths}
}

// ofInterval is a 95 % interval's ends.
func ofInterval(i compare.Interval) *Spread { return &Spread{i.Low, i.High, interval} }

// barsOf draws figures as bars with their spread.
func barsOf(title, unit string, figures []Figure, label func(*Figure) string) page.Plot {
	p := page.Plot{Title: title, YLabel: unit, Series: []page.Series{{}}}
	s := &p.Series[0]
	for i := range figures {
		f := &figures[i]
		low, high := math.NaN(), math.NaN()
		if f.Spread != nil {
			low, high = f.Spread.Low, f.Spread.High
		}
		p.Names = append(p.Names, label(f))
		s.Y, s.Low, s.High = append(s.Y, f.Value), append(s.Low, low), append(s.High, high)
	}
	return p
}
