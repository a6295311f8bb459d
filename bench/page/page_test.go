package page

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func plots() []Plot {
	return []Plot{
		{Title: "lines & <more>", XLabel: "x", YLabel: "y", Series: []Series{{Name: "a", X: []float64{1, 2, 3}, Y: []float64{1, 4, 9}}, {Name: "b", Reference: true}}},
		{LogX: true, LogY: true, Series: []Series{{Name: "a", X: []float64{0, 1, 1e6}, Y: []float64{1, 0, 1e-3}}}},
		{Names: []string{"p", "a name that is much too long for its place beside another such name", "q"}, Series: []Series{
			{Name: "ours", Y: []float64{1, -2}, Low: []float64{.5, -3}, High: []float64{2, math.NaN()}}, {Name: "others", Y: []float64{2}, Reference: true},
		}},
		{Series: []Series{{X: []float64{1}, Y: []float64{math.NaN()}, Dots: true}, {Name: strings.Repeat("x", 80), X: []float64{math.Inf(1)}, Y: []float64{1}}, {Name: "\xff\x00"}}},
		{},
		{Title: "all below 0", Series: []Series{{X: []float64{1, 2}, Y: []float64{-5, -3}}}},
		{Title: "one point", LogY: true, Series: []Series{{X: []float64{0}, Y: []float64{7}}}},
	}
}

var coordinates = regexp.MustCompile(`[ML](-?[0-9.e+]+) (-?[0-9.e+]+)`)

// TestSVG: whatever the values, the drawing is well formed, has only finite
// coordinates and keeps within its size.
func TestSVG(t *testing.T) {
	for i, p := range plots() {
		svg := p.SVG()
		if err := wellFormed(svg); err != nil {
			t.Errorf("plot %d: %v in\n%s", i, err, svg)
		}
		for _, bad := range []string{"NaN", "Inf"} {
			if strings.Contains(svg, bad) {
				t.Errorf("plot %d has the coordinate %s:\n%s", i, bad, svg)
			}
		}
		for _, at := range coordinates.FindAllStringSubmatch(svg, -1) {
			x, _ := strconv.ParseFloat(at[1], 64)
			y, _ := strconv.ParseFloat(at[2], 64)
			if x < 0 || x > width || y < 0 || y > height {
				t.Errorf("plot %d draws at %g %g, outside", i, x, y)
			}
		}
		if p.SVG() != svg {
			t.Errorf("plot %d is drawn in two ways", i)
		}
	}
}

func wellFormed(text string) error {
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// TestDraws: a line has its points, a bar its height, a spread its ends.
func TestDraws(t *testing.T) {
	line := Plot{Series: []Series{{X: []float64{0, 10}, Y: []float64{0, 5}}}}
	if want := fmt.Sprintf("M%.1f %.1fL%.1f %.1f", left, height-bottom, width-right, top); !strings.Contains(line.SVG(), want) {
		t.Errorf("no %s in\n%s", want, line.SVG())
	}
	bars := Plot{Names: []string{"a", "b"}, Series: []Series{{Y: []float64{10, 5}, Low: []float64{10, 0}, High: []float64{10, 5}}}}
	svg := bars.SVG()
	for _, want := range []string{fmt.Sprintf(`height="%.1f"`, height-bottom-top), fmt.Sprintf(`height="%.1f"`, (height-bottom-top)/2), fmt.Sprintf(" %.1fV%.1f", height-bottom, (height-bottom+top)/2)} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
}

// TestJSON: a plot read again is drawn as it was, with what can't be drawn left out.
func TestJSON(t *testing.T) {
	for i, p := range plots() {
		for j := range p.Series { // as JSON has it
			p.Series[j].Name = strings.ToValidUTF8(p.Series[j].Name, "\ufffd")
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Plot
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if back.SVG() != p.SVG() {
			t.Errorf("plot %d is drawn otherwise from %s", i, text)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, test := range []struct {
		values []float64
		log    bool
		want   []float64
	}{
		{[]float64{3, 10}, false, []float64{0, 2, 4, 6, 8, 10}},
		{[]float64{12, 700}, true, []float64{20, 50, 100, 200, 500}},
		{[]float64{1, 1e5}, true, []float64{1, 10, 100, 1e3, 1e4, 1e5}},
		{[]float64{0, 0}, false, []float64{0, .2, .4, .6, .8, 1}},
		{[]float64{-3, 900}, false, []float64{0, 200, 400, 600, 800}},
		{[]float64{-5, -3}, false, []float64{-5, -4, -3, -2, -1, 0}},
		{nil, true, []float64{1, 2}},
		{[]float64{math.NaN(), math.Inf(1), 4}, false, []float64{0, 1, 2, 3, 4}},
	} {
		a := axisOf(test.values, test.log, 0, 100)
		got := a.ticks()
		if len(got) != len(test.want) {
			t.Errorf("%v: %v, want %v", test.values, got, test.want)
			continue
		}
		for i := range got {
			if math.Abs(got[i]-test.want[i]) > 1e-9*math.Abs(test.want[i])+1e-12 || a.at(got[i]) < -1e-6 || a.at(got[i]) > 100+1e-6 {
				t.Errorf("%v: %v, want %v", test.values, got, test.want)
			}
		}
	}
}

// TestPage: the page has all that it is given, escaped, and asks nothing of
// anybody.
func TestPage(t *testing.T) {
	p := Page{
		Title: "a <title>", Lead: []string{"lead <b>"}, Soft: []string{"soft"}, Tables: []Table{{Columns: []string{"what"}, Rows: [][]Cell{{{Text: "first", Link: "one"}}}}},
		Sections: []Section{
			{ID: "one", Title: "One & only", Text: []string{"words"}, Notes: []string{"a note"}, Plots: plots(), Faults: []List{{Title: "wrong: 1", Lines: []string{"<script>"}}}},
			{Title: "Two", Tables: []Table{{Columns: []string{"a", "b"}, Rows: [][]Cell{Text("x", "y"), {{Text: "1"}, {Text: "missed", Mark: Bad}}}}}},
		},
	}
	var b, again bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(b.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http:", "https:", "src=", "<script", "<link", "@import", "url(", "a <title>", "<b>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"a &lt;title&gt;", "lead &lt;b&gt;", `<a href="#one">first</a>`, `<h2 id="one">One &amp; only</h2>`, "<li>a note</li>", "<summary>wrong: 1</summary>", "&lt;script&gt;", `<td class="bad">missed</td>`, "<td>x</td>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, "<svg"); n != len(plots()) {
		t.Errorf("%d plots, want %d", n, len(plots()))
	}
	if err := p.Write(&again); err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Errorf("the same page is other bytes (%v)", err)
	}
}
