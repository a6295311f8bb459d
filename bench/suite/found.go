package suite

import (
	"encoding/json"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// Found is what a part comes to.
type Found struct {
	Figures []Figure `json:"figures,omitempty"`
	// Notes are what must be known to read the figures right.
	Notes []string `json:"notes,omitempty"`
	// Files have what the figures come from, in the report's folder.
	Files []string    `json:"files,omitempty"`
	Plots []page.Plot `json:"plots,omitempty"`
	// Detail is the part's own result, where it is not too long.
	Detail json.RawMessage `json:"detail,omitempty"`
	// Sections are shown on the page; Detail has what is in them.
	Sections []page.Section `json:"-"`
}

// Figure is one number that was measured, with what it is held against.
type Figure struct {
	Name string `json:"name"`
	// Unit of Value; empty for a number without one.
	Unit string `json:"unit,omitempty"`
	// Value is a median unless Name says otherwise.
	Value  float64 `json:"value"`
	Spread *Spread `json:"spread,omitempty"`
	// Samples behind the value, 0 for one that is computed.
	Samples int      `json:"samples,omitempty"`
	Ratio   *Ratio   `json:"ratio,omitempty"`
	Targets []Target `json:"targets,omitempty"`
}

// Spread is how far samples lie apart.
type Spread struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Kind is which part of the samples lies between, such as "p10 to p90".
	Kind string `json:"kind"`
}

// Kinds of spread.
const (
	extremes = "least to most"
	tenths   = "p10 to p90"
	interval = "95 % interval"
)

// Ratio is the value by another's, measured in the same run.
type Ratio struct {
	Value  float64 `json:"value"`
	To     string  `json:"to"`
	Spread *Spread `json:"spread,omitempty"`
}

// Target is what a figure was to be.
type Target struct {
	// Of is what is held against the limit: "value", "ratio", or a word of its own.
	Of    string  `json:"of"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	// AtLeast: the limit is the least; else it is the most.
	AtLeast bool `json:"at_least,omitempty"`
	Met     bool `json:"met"`
	// Narrow: with the other end of the spread the answer would be another.
	Narrow bool `json:"narrow,omitempty"`
}

// atMost adds a limit for the value.
func (f *Figure) atMost(limit float64) {
	f.Targets = append(f.Targets, judged("value", f.Value, limit, false, f.Spread))
}

// ratioAtMost adds a limit for the ratio.
//
// REQUIRES: there is one.
func (f *Figure) ratioAtMost(limit float64) {
	f.Targets = append(f.Targets, judged("ratio", f.Ratio.Value, limit, false, f.Ratio.Spread))
}

// judged is a target with its answer. NaN meets nothing.
func judged(of string, value, limit float64, atLeast bool, spread *Spread) Target {
	meets := func(v float64) bool { return atLeast && v >= limit || !atLeast && v <= limit }
	t := Target{Of: of, Value: value, Limit: limit, AtLeast: atLeast, Met: meets(value)}
	t.Narrow = spread != nil && (meets(spread.Low) != t.Met || meets(spread.High) != t.Met)
	return t
}

// String says whether it is met.
func (t *Target) String() string {
	sign := "<="
	if t.AtLeast {
		sign = ">="
	}
	answer := "met"
	if !t.Met {
		answer = "MISSED"
	}
	if t.Narrow {
		answer += ", within the spread"
	}
	of := ""
	if t.Of != "value" {
		of = t.Of + " "
	}
	return fmt.Sprintf("%s%s %s: %s", of, sign, digits(t.Limit), answer)
}

// digits shows three of them.
func digits(v float64) string {
	if v >= 1000 || v <= -1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
