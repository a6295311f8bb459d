package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// Size of a plot and its margins, in pixels.
const (
	width, height            = 560.0, 300.0
	left, right, top, bottom = 64.0, 14.0, 26.0, 44.0
	letter                   = 6.4 // of a name, roughly
)

// plot is points or lines over two axes.
type plot struct {
	title, x, y string
	logX        bool
	series      []series
}

type series struct {
	name string
	// class is the style's: a, b or c.
	class  string
	points [][2]float64
	// dots draws no line.
	dots bool
}

// axis maps values to pixels.
type axis struct {
	low, high, from, to float64
	log                 bool
}

// newAxis spans the values that can be shown; a linear one begins at 0.
func newAxis(values []float64, log bool, from, to float64) axis {
	a := axis{low: math.Inf(1), high: math.Inf(-1), from: from, to: to, log: log}
	for _, v := range values {
		if !math.IsInf(v, 0) && !math.IsNaN(v) && (!log || v > 0) {
			a.low, a.high = min(a.low, v), max(a.high, v)
		}
	}
	if a.low > a.high {
		a.low, a.high = 1, 2
	}
	if !log {
		a.low = min(a.low, 0)
	}
	if a.low == a.high {
		a.high = a.low*2 + 1
	}
	return a
}

func (a *axis) shows(v float64) bool { return v >= a.low && v <= a.high }

func (a *axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// ticks are round values.
func (a *axis) ticks() []float64 {
	var ticks []float64
	if a.log {
		for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
			for _, digit := range []float64{1, 2, 5} {
				if v := digit * power; a.shows(v) {
					ticks = append(ticks, v)
				}
			}
		}
		return ticks
	}
	const most = 6
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/most)))
	for _, coarser := range []float64{2, 2.5, 2} {
		if (a.high-a.low)/step <= most {
			break
		}
		step *= coarser
	}
	for n := math.Ceil(a.low / step); n*step <= a.high; n++ {
		ticks = append(ticks, n*step)
	}
	return ticks
}

// SVG draws the plot; all text in it is our own and numbers.
func (p *plot) SVG() template.HTML {
	var xs, ys []float64
	for _, s := range p.series {
		for _, point := range s.points {
			xs, ys = append(xs, point[0]), append(ys, point[1])
		}
	}
	x, y := newAxis(xs, p.logX, left, width-right), newAxis(ys, false, height-bottom, top)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(p.title))
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %gV%g"/><text x="%.1f" y="%g" text-anchor="middle">%.6g</text>`, x.at(v), top, height-bottom, x.at(v), height-bottom+15, v)
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<path class="grid" d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%.6g</text>`, left, y.at(v), width-right, left-6, y.at(v)+4, v)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (left+width-right)/2, height-8, template.HTMLEscapeString(p.x))
	fmt.Fprintf(&b, `<text transform="translate(13 %g) rotate(-90)" text-anchor="middle">%s</text>`, (top+height-bottom)/2, template.HTMLEscapeString(p.y))
	at := left
	for i := range p.series {
		s := &p.series[i]
		s.draw(&b, &x, &y)
		fmt.Fprintf(&b, `<text class="%s name" x="%.1f" y="16">%s</text>`, s.class, at, template.HTMLEscapeString(s.name))
		at += letter*float64(len(s.name)) + 20
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) // escaped above
}

func (s *series) draw(b *strings.Builder, x, y *axis) {
	var path strings.Builder
	for _, point := range s.points {
		if !x.shows(point[0]) || !y.shows(point[1]) {
			continue
		}
		switch {
		case s.dots: // a line of no length with round ends
			fmt.Fprintf(&path, "M%.1f %.1fh0", x.at(point[0]), y.at(point[1]))
		case path.Len() == 0:
			fmt.Fprintf(&path, "M%.1f %.1f", x.at(point[0]), y.at(point[1]))
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", x.at(point[0]), y.at(point[1]))
		}
	}
	kind := "line"
	if s.dots {
		kind = "dots"
	}
	fmt.Fprintf(b, `<path class="%s %s" d="%s"/>`, s.class, kind, path.String())
}
