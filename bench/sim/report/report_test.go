package report

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

func sample() []Table {
	t := Table{Name: "x", Title: "a <title>", Answers: "Fig. 0", Parameters: "p & q", Columns: []string{"name", "value", "spread"}, Notes: []string{"a note"}}
	t.Add("one", Of(2)(1.23456), Spread{Mean: 2, Deviation: .5, Decimals: 1})
	t.Add("two", nil, Spread{Mean: 3, Decimals: 1})
	t.Plots = []page.Plot{
		{Title: "lines & <more>", XLabel: "x", YLabel: "y", Series: []page.Series{{Name: "a", X: []float64{1, 2, 3}, Y: []float64{1, 4, 9}}, {Name: "b", Reference: true}}},
		{LogX: true, LogY: true, Series: []page.Series{{Name: "a", X: []float64{0, 1, 1e6}, Y: []float64{1, 0, 1e-3}}}},
		{Names: []string{"p", "q"}, Series: []page.Series{{Name: "ours", Y: []float64{1, -2}}, {Name: "paper", Y: []float64{2}, Reference: true}}},
		{Series: []page.Series{{X: []float64{1}, Y: []float64{math.NaN()}}}},
		{},
	}
	return []Table{t, {Name: "y", Columns: []string{"none"}}}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"x: a <title>", "answers Fig. 0", "1.23 ", "2.0 ±0.5", " - ", " 3.0", "* a note"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, &b)
		}
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := JSON(&b, sample()); err != nil {
		t.Fatal(err)
	}
	var first struct {
		Rows [][]any
	}
	if err := json.NewDecoder(&b).Decode(&first); err != nil {
		t.Fatal(err)
	}
	spread, ok := first.Rows[0][2].(map[string]any)
	if first.Rows[0][1] != 1.23456 || !ok || spread["deviation"] != .5 || first.Rows[1][1] != nil {
		t.Errorf("rows %v", first.Rows)
	}
}

// TestHTML: the page asks nothing of anybody.
func TestHTML(t *testing.T) {
	var b bytes.Buffer
	if err := HTML(&b, "page", sample()); err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(b.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http:", "https:", "src=", "<script", "<link", "@import", "a <title>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if strings.Count(page, "<svg") != 5 || !strings.Contains(page, "a &lt;title&gt;") {
		t.Error("the page lacks plots or its title")
	}
}

func TestAddCells(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a row that is too short was taken")
		}
	}()
	tables := sample()
	tables[0].Add("one")
}
