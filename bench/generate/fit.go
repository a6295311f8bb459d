package generate

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// parts of the time whose rates are fitted, at most; each has some hundred requests.
const (
	fitParts        = 12
	requestsPerPart = 100
)

// Fit takes the statistics of a trace.
func Fit(name string, requests []trace.Numbered) (*Profile, error) {
	if len(requests) < 2 {
		return nil, fmt.Errorf("%w: %d requests say nothing of a workload", ErrProfile, len(requests))
	}
	arrivals, err := fitArrivals(requests)
	if err != nil {
		return nil, err
	}
	var input, output []float64
	fits := [3]classFit{{name: "new"}, {name: "first block"}, {name: "deeper"}}
	last := map[int64]int{} // the last request with an id
	for i := range requests {
		r := &requests[i].Request
		shared := 0
		for shared < len(r.HashIDs) {
			if _, known := last[r.HashIDs[shared]]; !known {
				break
			}
			shared++
		}
		input, output = append(input, float64(r.InputTokens)), append(output, float64(r.OutputTokens))
		age := 0
		if shared > 0 {
			age = i - last[r.HashIDs[shared-1]]
		}
		fits[min(shared, 2)].add(r, shared, age)
		for _, id := range r.HashIDs {
			last[id] = i
		}
	}
	p := &Profile{Name: name, Arrivals: arrivals, OutputCorrelation: correlation(input, output), Output: fitQuantiles(output)}
	for i := range fits {
		if c := &fits[i]; len(c.input) > 0 {
			p.Classes = append(p.Classes, c.class(len(requests)))
		}
	}
	return p, p.Validate()
}

// classFit collects one class's requests.
type classFit struct {
	name              string
	input, depth, age []float64
}

func (c *classFit) add(r *trace.Request, shared, age int) {
	c.input = append(c.input, float64(r.InputTokens))
	c.depth = append(c.depth, min(1, float64(shared)/float64(max(1, r.InputTokens/trace.BlockTokens))))
	c.age = append(c.age, float64(age))
}

func (c *classFit) class(requests int) Class {
	k := Class{Name: c.name, Probability: float64(len(c.input)) / float64(requests)}
	switch c.name {
	case "first block":
		k.FirstOnly, k.Age = true, fitQuantiles(c.age)
	case "deeper":
		k.DepthCorrelation = correlation(c.input, c.depth)
		k.Depth, k.Age = fitQuantiles(c.depth), fitQuantiles(c.age)
	}
	k.Input = fitQuantiles(c.input)
	return k
}

func fitArrivals(requests []trace.Numbered) (Arrivals, error) {
	first, last := requests[0].TimestampMS, requests[len(requests)-1].TimestampMS
	grid := int64(0)
	for i := range requests {
		grid = gcd(grid, requests[i].TimestampMS-first)
	}
	if grid == 0 {
		return Arrivals{}, fmt.Errorf("%w: all requests come at once", ErrProfile)
	}
	span := float64(last - first + grid)
	a := Arrivals{RatePerS: float64(len(requests)) / span * 1e3, GridMS: grid, Parts: make([]float64, min(fitParts, 1+len(requests)/requestsPerPart))}
	for i := range requests {
		a.Parts[int(float64(requests[i].TimestampMS-first)/span*float64(len(a.Parts)))] += float64(len(a.Parts)) / float64(len(requests))
	}
	a.Dispersion = dispersion(requests, span, &a)
	return a, nil
}

// dispersion of counts around what the parts' rates let expect, in windows of some
// ten requests.
func dispersion(requests []trace.Numbered, span float64, a *Arrivals) float64 {
	const perWindow = 10
	window := max(1, int64(perWindow/a.RatePerS*1e3)/a.GridMS) * a.GridMS
	counts := make([]float64, int(span)/int(window))
	if len(counts) == 0 {
		return 1
	}
	for i := range requests {
		if w := (requests[i].TimestampMS - requests[0].TimestampMS) / window; int(w) < len(counts) {
			counts[w]++
		}
	}
	squares, sum := 0.0, 0.0
	for w, n := range counts {
		middle := (float64(w) + .5) * float64(window) / span
		want := a.RatePerS * a.Parts[int(middle*float64(len(a.Parts)))] * float64(window) / 1e3
		squares, sum = squares+(n-want)*(n-want), sum+want
	}
	return min(max(squares/sum, .05), 100)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
