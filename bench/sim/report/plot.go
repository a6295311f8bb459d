package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Plot is lines over one axis, or bars over names.
type Plot struct {
	Title, XLabel, YLabel string
	LogX, LogY            bool
	Series                []Series
	// Names are of bars; Series then have a Y for each and no X.
	Names []string
}

// Series is a line or a colour of bars.
type Series struct {
	Name string
	X, Y []float64
	// Paper: from a paper, drawn dashed.
	Paper bool
}

// size of a plot in pixels, and its margins.
const (
	plotWidth, plotHeight    = 560.0, 320.0
	left, right, top, bottom = 64.0, 16.0, 32.0, 72.0
)

func colour(i int) string {
	colours := [...]string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"}
	return colours[i%len(colours)]
}

// SVG draws a plot. The same plot is the same text.
func (p *Plot) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" font-family="sans-serif" font-size="11">`, plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%g" y="18" text-anchor="middle" font-size="13">%s</text>`, plotWidth/2, html.EscapeString(p.Title))
	if len(p.Names) > 0 {
		p.bars(&b)
	} else {
		p.lines(&b)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, plotWidth/2, plotHeight-bottom+34, html.EscapeString(p.XLabel))
	fmt.Fprintf(&b, `<text transform="translate(14 %g) rotate(-90)" text-anchor="middle">%s</text>`, (top+plotHeight-bottom)/2, html.EscapeString(p.YLabel))
	at := left
	for i, s := range p.Series {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%g" width="10" height="10" fill="%s"/><text x="%.1f" y="%g">%s</text>`, at, plotHeight-22, colour(i), at+13, plotHeight-13, html.EscapeString(s.Name))
		at += 26 + 6.2*float64(len(s.Name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps values to pixels.
type axis struct {
	low, high, from, to float64
	log                 bool
}

func (a *axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// axisOf spans values that are finite and, on a logarithmic axis, positive.
func axisOf(values []float64, log bool, from, to float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if finite(v) && (!log || v > 0) {
			low, high = min(low, v), max(high, v)
		}
	}
	if low > high {
		low, high = 1, 2
	}
	if !log {
		low = min(low, 0)
	}
	if low == high {
		high = low + 1
	}
	return axis{low, high, from, to, log}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// ticks are some round values on the axis.
func (a *axis) ticks() []float64 {
	var out []float64
	if a.log {
		for d := math.Floor(math.Log10(a.low)); d <= math.Log10(a.high); d++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, d); v >= a.low*.999 && v <= a.high*1.001 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/4)))
	for _, m := range []float64{5, 2} {
		if (a.high-a.low)/(step*m) >= 4 {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.low/step) * step; v <= a.high*1.0001; v += step {
		out = append(out, v)
	}
	return out
}

func short(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

func (p *Plot) lines(b *strings.Builder) {
	var xs, ys []float64
	for i := range p.Series {
		xs, ys = append(xs, p.Series[i].X...), append(ys, p.Series[i].Y...)
	}
	x, y := axisOf(xs, p.LogX, left, plotWidth-right), axisOf(ys, p.LogY, plotHeight-bottom, top)
	for _, v := range x.ticks() {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%g" x2="%.1f" y2="%g" stroke="#eee"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x.at(v), top, x.at(v), plotHeight-bottom, x.at(v), plotHeight-bottom+14, short(v))
	}
	p.yTicks(b, &y)
	for i, s := range p.Series {
		var points []string
		for j := range min(len(s.X), len(s.Y)) {
			if (p.LogX && s.X[j] <= 0) || (p.LogY && s.Y[j] <= 0) || !finite(s.X[j]) || !finite(s.Y[j]) {
				continue
			}
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(s.X[j]), y.at(s.Y[j])))
		}
		dash := ""
		if s.Paper {
			dash = ` stroke-dasharray="5 3"`
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"%s/>`, strings.Join(points, " "), colour(i), dash)
	}
}

func (p *Plot) yTicks(b *strings.Builder, y *axis) {
	for _, v := range y.ticks() {
		fmt.Fprintf(b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, left, y.at(v), plotWidth-right, y.at(v), left-5, y.at(v)+4, short(v))
	}
}

func (p *Plot) bars(b *strings.Builder) {
	var ys []float64
	for i := range p.Series {
		ys = append(ys, p.Series[i].Y...)
	}
	y := axisOf(ys, p.LogY, plotHeight-bottom, top)
	p.yTicks(b, &y)
	group := (plotWidth - left - right) / float64(len(p.Names))
	width := group * .8 / float64(max(len(p.Series), 1))
	for n, name := range p.Names {
		fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, left+(float64(n)+.5)*group, plotHeight-bottom+14, html.EscapeString(name))
		for i, s := range p.Series {
			if n >= len(s.Y) || p.LogY && s.Y[n] <= 0 || !finite(s.Y[n]) {
				continue
			}
			x, base, at := left+float64(n)*group+group*.1+float64(i)*width, y.at(y.low), y.at(s.Y[n])
			pattern := ""
			if s.Paper {
				pattern = ` fill-opacity=".45"`
			}
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s/>`, x, min(at, base), max(width-1, 1), math.Abs(base-at), colour(i), pattern)
		}
	}
}
