package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
)

// maxPoints of a line; more are not seen and make the page slow.
const maxPoints = 2000

//go:embed page.html
var pageText string

// page is what the template shows.
type page struct {
	Setup     Setup
	Summary   *record.Summary
	Sentences []string
	Spreads   []pageSpread
	Faults    []pageFault
	Plots     []pagePlot
}

type pageSpread struct {
	Name   string
	Count  int64
	Values []float64
}

type pageFault struct {
	Name  string
	Count int
	Lines []string
}

type pagePlot struct {
	Title string
	SVG   template.HTML
}

// WriteHTML writes a page that opens without a network.
func (r *Report) WriteHTML(out io.Writer) error {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("the report's page: %w", err)
	}
	p := page{Setup: r.Setup, Summary: r.Summary, Sentences: r.sentences()}
	for _, s := range r.spreads() {
		p.Spreads = append(p.Spreads, pageSpread{s.name, s.Count, []float64{s.Mean, s.P50, s.P90, s.P95, s.P99, s.P999, s.Max}})
	}
	for _, f := range r.faults() {
		p.Faults = append(p.Faults, pageFault{f.name, f.count, f.lines})
	}
	for _, plot := range r.plots() {
		p.Plots = append(p.Plots, pagePlot{plot.title, plot.SVG()})
	}
	if err := t.Execute(out, &p); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// plots draws the outcomes.
func (r *Report) plots() []plot {
	var ttft, tail, latency []float64
	var over, hit, must [][2]float64
	var events [][2]float64 // a time, and one request more or fewer
	cached, expected := 0.0, 0.0
	for i := range r.outcomes {
		o := &r.outcomes[i]
		events = append(events, [2]float64{o.Sent.Seconds(), 1}, [2]float64{o.End.Seconds(), -1})
		if o.First != record.Never {
			ttft = append(ttft, milli(o.TTFT()))
			over = append(over, [2]float64{o.Due.Seconds(), o.TTFT().Seconds()})
		}
		if o.TailGap > 0 {
			tail = append(tail, milli(o.TailGap))
		}
		if o.Err != nil {
			continue
		}
		latency = append(latency, milli(o.End-o.Due))
		if o.CachedTokens != client.Unknown {
			cached, expected = cached+float64(o.CachedTokens), expected+float64(o.Must)
			hit, must = append(hit, [2]float64{float64(o.Line), cached}), append(must, [2]float64{float64(o.Line), expected})
		}
	}
	slices.SortStableFunc(events, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	under, busy := 0.0, [][2]float64{}
	for _, e := range events {
		busy = append(busy, [2]float64{e[0], under}, [2]float64{e[0], under + e[1]})
		under += e[1]
	}
	return []plot{
		{title: "Time to first token, by when the request was due", x: "due, s", y: "s", series: []series{{name: "time to first token", class: "a", points: thin(over), dots: true}}},
		{title: "Share of requests within a time", x: "ms", y: "share", logX: true, series: []series{
			{name: "time to first token", class: "a", points: cumulative(ttft)}, {name: "whole request", class: "b", points: cumulative(latency)},
		}},
		{title: "Papers' TBT: share of requests whose longest tenth of gaps is within a time", x: "ms", y: "share", logX: true, series: []series{{name: "TBT", class: "a", points: cumulative(tail)}}},
		{title: "Requests under way", x: "s", y: "requests", series: []series{{name: "under way", class: "a", points: thin(busy)}}},
		{title: "Cached tokens, summed up", x: "line of the trace", y: "tokens", series: []series{
			{name: "must be, in a cache that never evicts", class: "c", points: thin(must)}, {name: "cached", class: "a", points: thin(hit)},
		}},
	}
}

// cumulative is the distribution of values.
func cumulative(values []float64) [][2]float64 {
	slices.Sort(values)
	points := make([][2]float64, len(values))
	for i, v := range values {
		points[i] = [2]float64{v, float64(i+1) / float64(len(values))}
	}
	return thin(points)
}

// thin leaves out points evenly, never the last.
func thin(points [][2]float64) [][2]float64 {
	if len(points) <= maxPoints {
		return points
	}
	kept := make([][2]float64, 0, maxPoints)
	for i := range maxPoints {
		kept = append(kept, points[i*(len(points)-1)/(maxPoints-1)])
	}
	return kept
}
