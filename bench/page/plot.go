package page

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"
)

// Plot is lines or dots over two axes, or bars over names.
type Plot struct {
	Title  string   `json:"title"`
	XLabel string   `json:"x_label,omitempty"`
	YLabel string   `json:"y_label,omitempty"`
	LogX   bool     `json:"log_x,omitempty"`
	LogY   bool     `json:"log_y,omitempty"`
	Series []Series `json:"series"`
	// Names are of bars; Series then have a Y for each and no X.
	Names []string `json:"names,omitempty"`
}

// Series is a line, or a colour of bars.
type Series struct {
	Name string `json:"name"`
	X    Values `json:"x,omitempty"`
	Y    Values `json:"y"`
	// Low and High are how far bars' values spread; both have a value for each bar, or
	// there are none.
	Low  Values `json:"low,omitempty"`
	High Values `json:"high,omitempty"`
	// Reference: another's values, drawn dashed or pale.
	Reference bool `json:"reference,omitempty"`
	// Dots: points without a line.
	Dots bool `json:"dots,omitempty"`
}

// Values are numbers, in JSON null for those that are not finite.
type Values []float64

// MarshalJSON implements json.Marshaler.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]*float64, len(v))
	for i := range v {
		if finite(v[i]) {
			out[i] = &v[i]
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Values) UnmarshalJSON(text []byte) error {
	var in []*float64
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*v = make(Values, len(in))
	for i := range in {
		(*v)[i] = math.NaN()
		if in[i] != nil {
			(*v)[i] = *in[i]
		}
	}
	return nil
}

// Sizes in pixels.
const (
	width, height            = 560.0, 320.0
	left, right, top, bottom = 64.0, 16.0, 32.0, 46.0
	letter                   = 6.2 // of 11 pixels, roughly
	legendLine               = 16.0
	mostSlanted              = 160.0
	mostLetters              = 51 // of a slanted name, which take so much
)

// colours of series; a page in the dark has others, by their classes.
func colour(i int) (class, light string) {
	colours := [...]string{"#1668b5", "#c2410c", "#2b8a3e", "#7b4fb0", "#b58900", "#0f8b8d", "#8c564b", "#6b7280"}
	return fmt.Sprintf("c%d", i%len(colours)), colours[i%len(colours)]
}

// SVG draws the plot, by itself or as a part of a page, whose style goes before the
// colours in the drawing. The same plot is the same text.
func (p *Plot) SVG() string {
	var b strings.Builder
	extra := p.slanted()
	legend, lines := p.legend(extra)
	full := height + extra + legendLine*float64(lines)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" font-family="sans-serif" font-size="11" role="img" aria-label="%s">`,
		width, full, width, full, escape(p.Title))
	fmt.Fprintf(&b, `<rect class="back" width="100%%" height="100%%" fill="white"/><text x="%g" y="18" text-anchor="middle" font-size="12" class="title">%s</text>`, width/2, escape(p.Title))
	if len(p.Names) > 0 {
		p.bars(&b)
	} else {
		p.lines(&b)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (left+width-right)/2, height-bottom+32+extra, escape(p.XLabel))
	fmt.Fprintf(&b, `<text transform="translate(13 %g) rotate(-90)" text-anchor="middle">%s</text>`, (top+height-bottom)/2, escape(p.YLabel))
	b.WriteString(legend)
	b.WriteString("</svg>\n")
	return b.String()
}

// escape makes text that is safe in HTML and in XML, which has no control characters.
func escape(s string) string {
	printable := func(r rune) rune {
		if r < ' ' || r == '\uFFFE' || r == '\uFFFF' {
			return '?'
		}
		return r
	}
	return html.EscapeString(strings.Map(printable, strings.ToValidUTF8(s, "?")))
}

// slanted is how much lower bars' names reach that are too long to stand side by side,
// 0 where they are not. They then are written at an angle of 30 degrees.
func (p *Plot) slanted() float64 {
	longest := 0
	for _, name := range p.Names {
		longest = max(longest, utf8.RuneCountInString(name))
	}
	if len(p.Names) == 0 || letter*float64(longest+1) <= (width-left-right)/float64(len(p.Names)) {
		return 0
	}
	return min(letter*float64(longest)/2, mostSlanted)
}

// legend names the series, extra pixels below the plot; lines is how many it takes.
func (p *Plot) legend(extra float64) (text string, lines int) {
	var b strings.Builder
	x, y := left, height+extra
	for i, s := range p.Series {
		if s.Name == "" {
			continue
		}
		wide := 28 + letter*float64(utf8.RuneCountInString(s.Name))
		if lines == 0 {
			lines = 1
		} else if x+wide > width-right {
			x, y, lines = left, y+legendLine, lines+1
		}
		class, light := colour(i)
		fmt.Fprintf(&b, `<rect class="%s fill" x="%.1f" y="%g" width="10" height="10" fill="%s"%s/><text x="%.1f" y="%g">%s</text>`, class, x, y-4, light, pale(&s), x+14, y+5, escape(s.Name))
		x += wide
	}
	return b.String(), lines
}

// shorten leaves so many letters of a text, for those before would be outside.
func shorten(text string, letters int) string {
	runes := []rune(text)
	letters = min(letters, mostLetters)
	if len(runes) <= letters || letters < 1 {
		return text
	}
	return "…" + string(runes[len(runes)-letters:])
}

func pale(s *Series) string {
	if s.Reference {
		return ` fill-opacity=".45"`
	}
	return ""
}

func (p *Plot) lines(b *strings.Builder) {
	var xs, ys []float64
	for i := range p.Series {
		xs, ys = append(xs, p.Series[i].X...), append(ys, p.Series[i].Y...)
	}
	x, y := axisOf(xs, p.LogX, left, width-right), axisOf(ys, p.LogY, height-bottom, top)
	for _, v := range x.ticks() {
		fmt.Fprintf(b, `<path class="grid" stroke="#ddd" d="M%.1f %gV%g"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x.at(v), top, height-bottom, x.at(v), height-bottom+15, short(v))
	}
	yTicks(b, &y)
	for i := range p.Series {
		p.Series[i].draw(b, i, &x, &y)
	}
}

// draw draws a line or dots; what can't be shown is left out.
func (s *Series) draw(b *strings.Builder, i int, x, y *axis) {
	var path strings.Builder
	for j := range min(len(s.X), len(s.Y)) {
		if !x.shows(s.X[j]) || !y.shows(s.Y[j]) {
			continue
		}
		switch {
		case s.Dots: // a line of no length with round ends
			fmt.Fprintf(&path, "M%.1f %.1fh0", x.at(s.X[j]), y.at(s.Y[j]))
		case path.Len() == 0:
			fmt.Fprintf(&path, "M%.1f %.1f", x.at(s.X[j]), y.at(s.Y[j]))
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", x.at(s.X[j]), y.at(s.Y[j]))
		}
	}
	form := ` stroke-width="1.8"`
	switch {
	case s.Dots:
		form = ` stroke-width="3.6" stroke-linecap="round" stroke-opacity=".55"`
	case s.Reference:
		form += ` stroke-dasharray="5 3"`
	}
	class, light := colour(i)
	fmt.Fprintf(b, `<path class="%s stroke" fill="none" stroke="%s"%s d="%s"/>`, class, light, form, path.String())
}

func yTicks(b *strings.Builder, y *axis) {
	for _, v := range y.ticks() {
		fmt.Fprintf(b, `<path class="grid" stroke="#ddd" d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, left, y.at(v), width-right, left-5, y.at(v)+4, short(v))
	}
}

func (p *Plot) bars(b *strings.Builder) {
	var ys []float64
	for i := range p.Series {
		ys = append(append(append(ys, p.Series[i].Y...), p.Series[i].Low...), p.Series[i].High...)
	}
	y := axisOf(ys, p.LogY, height-bottom, top)
	if p.LogY {
		y.low /= 2 // that the least is seen
	}
	yTicks(b, &y)
	group := (width - left - right) / float64(len(p.Names))
	wide := group * .8 / float64(max(len(p.Series), 1))
	base := y.at(y.low)
	if !y.log {
		base = y.at(0)
	}
	for n, name := range p.Names {
		middle := left + (float64(n)+.5)*group
		if p.slanted() > 0 {
			fmt.Fprintf(b, `<text transform="translate(%.1f %g) rotate(-30)" text-anchor="end">%s</text>`, middle+4, height-bottom+13, escape(shorten(name, int((middle-4)/letter/.87))))
		} else {
			fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, middle, height-bottom+15, escape(name))
		}
		for i := range p.Series {
			s := &p.Series[i]
			if n >= len(s.Y) || !y.shows(s.Y[n]) {
				continue
			}
			class, light := colour(i)
			x, at := left+float64(n)*group+group*.1+float64(i)*wide, y.at(s.Y[n])
			fmt.Fprintf(b, `<rect class="%s fill" x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s/>`, class, x, min(at, base), max(wide-1, 1), math.Abs(base-at), light, pale(s))
			if n < len(s.Low) && n < len(s.High) && y.shows(s.Low[n]) && y.shows(s.High[n]) {
				fmt.Fprintf(b, `<path class="spread" fill="none" stroke="#333" d="M%.1f %.1fV%.1f"/>`, x+max(wide-1, 1)/2, y.at(s.Low[n]), y.at(s.High[n]))
			}
		}
	}
}
