package generate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// Limits of a profile.
const (
	maxProfileBytes = 8 << 20
	maxTokens       = 1 << 24
	maxParts        = 1 << 12
)

// Limits of a mean rate, in requests a second.
const (
	MinRatePerS = 1e-6
	MaxRatePerS = 1e6
)

// RateInRange tells whether a mean rate is one that can be drawn with.
func RateInRange(perS float64) bool { return perS >= MinRatePerS && perS <= MaxRatePerS }

// ErrProfile: a profile that nothing can be drawn from.
var ErrProfile = errors.New("wrong profile")

// Profile is the statistics of a workload.
type Profile struct {
	Name     string   `json:"name"`
	Arrivals Arrivals `json:"arrivals"`
	// Output tokens, and how they go with the prompt's length (normal scores).
	Output            Quantiles `json:"output_tokens"`
	OutputCorrelation float64   `json:"output_correlation"`
	// Classes of requests by what they share; their probabilities add up to 1.
	Classes []Class `json:"classes"`
}

// Arrivals is how requests come.
type Arrivals struct {
	RatePerS float64 `json:"rate_per_s"`
	// Dispersion of counts: variance over mean, 1 for Poisson arrivals.
	Dispersion float64 `json:"dispersion"`
	// GridMS: timestamps are multiples of it.
	GridMS int64 `json:"grid_ms"`
	// Parts are the rates in equal parts of the time, relative to RatePerS.
	Parts []float64 `json:"parts"`
}

// Class is requests that share alike.
type Class struct {
	Name        string    `json:"name"`
	Probability float64   `json:"probability"`
	Input       Quantiles `json:"input_tokens"`
	// Depth is the share of the prompt's whole blocks that an earlier request has; nil
	// for requests that share nothing.
	Depth            Quantiles `json:"depth,omitempty"`
	DepthCorrelation float64   `json:"depth_correlation"`
	// FirstOnly: only the first block is shared, whatever the length.
	FirstOnly bool `json:"first_block_only,omitempty"`
	// Age is how many requests ago what is shared was last there, from 1.
	Age Quantiles `json:"age,omitempty"`
}

func (c *Class) shares() bool { return c.FirstOnly || len(c.Depth) > 0 }

// Validate returns every fault.
func (p *Profile) Validate() error {
	var faults []error
	want := func(ok bool, format string, arguments ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrProfile}, arguments...)...))
		}
	}
	a := &p.Arrivals
	want(RateInRange(a.RatePerS), "%g requests a second", a.RatePerS)
	want(a.Dispersion > 0 && a.Dispersion <= 1e4, "a dispersion of %g", a.Dispersion)
	want(a.GridMS >= 1 && a.GridMS <= 1e9, "a grid of %d ms", a.GridMS)
	want(len(a.Parts) >= 1 && len(a.Parts) <= maxParts, "%d parts of the time", len(a.Parts))
	sum := 0.0
	for _, part := range a.Parts {
		want(part >= 0 && part <= 1e6, "a part with a rate of %g", part)
		sum += part
	}
	want(sum > 0, "no part of the time has arrivals")
	faults = append(faults, p.Output.check("output_tokens", 0, maxTokens))
	want(math.Abs(p.OutputCorrelation) <= 1, "a correlation of %g", p.OutputCorrelation)
	total := 0.0
	for i := range p.Classes {
		c := &p.Classes[i]
		total += c.Probability
		want(c.Probability >= 0 && c.Probability <= 1, "class %q has a probability of %g", c.Name, c.Probability)
		want(math.Abs(c.DepthCorrelation) <= 1, "class %q has a correlation of %g", c.Name, c.DepthCorrelation)
		faults = append(faults, c.Input.check("input_tokens of class "+c.Name, 1, maxTokens))
		if len(c.Depth) > 0 {
			faults = append(faults, c.Depth.check("depth of class "+c.Name, 0, 1))
		}
		if c.shares() {
			faults = append(faults, c.Age.check("age of class "+c.Name, 1, math.MaxInt32))
		}
	}
	want(math.Abs(total-1) < 1e-6, "the classes' probabilities add up to %g", total)
	return errors.Join(faults...)
}

// Read reads a profile that Write wrote.
func Read(in io.Reader) (*Profile, error) {
	d := json.NewDecoder(io.LimitReader(in, maxProfileBytes))
	d.DisallowUnknownFields()
	var p Profile
	if err := d.Decode(&p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfile, err)
	}
	return &p, p.Validate()
}

// Write writes a profile as JSON.
func (p *Profile) Write(out io.Writer) error {
	if err := json.NewEncoder(out).Encode(p); err != nil {
		return fmt.Errorf("writing a profile: %w", err)
	}
	return nil
}
