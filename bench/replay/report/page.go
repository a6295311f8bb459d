package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
)

// maxPoints of a line; more are not seen and make the page slow.
const maxPoints = 2000

// WriteHTML writes a page that opens without a network.
func (r *Report) WriteHTML(out io.Writer) error {
	s := r.Summary
	p := page.Page{
		Title: "Replay of " + r.Setup.Trace, Soft: []string{r.Setup.sentence()}, Tables: []page.Table{r.times()},
		Lead: append([]string{fmt.Sprintf("%d of %d requests answered in %.1f s: %.3g requests/s, %.0f prompt and %.0f output tokens/s.",
			s.Answered, s.Requests, s.Seconds, s.RequestsPerS, s.PromptTokensPerS, s.OutputTokensPerS)}, r.sentences()...),
	}
	if faults := r.faults(); len(faults) > 0 {
		wrong := page.Section{Title: "What went wrong"}
		for _, f := range faults {
			wrong.Faults = append(wrong.Faults, page.List{Title: fmt.Sprintf("%s: %d", f.name, f.count), Lines: f.lines})
		}
		p.Sections = append(p.Sections, wrong)
	}
	p.Sections = append(p.Sections, page.Section{Title: "Plots", Plots: r.plots()})
	return p.Write(out)
}

// sentence tells what was replayed, where and how.
func (s *Setup) sentence() string {
	loop := s.Loop + " loop"
	if s.Loop == "open" {
		loop += fmt.Sprintf(" at %g times the trace's speed", s.Speed)
	}
	return fmt.Sprintf("%s at %s, %s; %s, at most %d at once; %d tokens for a block of 512, engine blocks of %d; outputs times %g; seed %d; mooncake-bench %s",
		s.Model, s.URL, s.Begin.Format("2006-01-02 15:04:05 MST"), loop, s.AtOnce, s.ScaledBlock, s.BlockTokens, s.OutputFactor, s.Seed, s.Version)
}

func (r *Report) times() page.Table {
	t := page.Table{Columns: []string{"milliseconds", "count", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"}}
	for _, s := range r.spreads() {
		row := page.Text(s.name, fmt.Sprint(s.Count))
		for _, v := range []float64{s.Mean, s.P50, s.P90, s.P95, s.P99, s.P999, s.Max} {
			row = append(row, page.Cell{Text: fmt.Sprintf("%.1f", v)})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// points of a line, x and y.
type points [][2]float64

// line makes them a series; more than can be seen are thinned.
func (p points) line(name string) page.Series {
	s := page.Series{Name: name}
	for _, at := range thin(p) {
		s.X, s.Y = append(s.X, at[0]), append(s.Y, at[1])
	}
	return s
}

// plots draws the outcomes.
func (r *Report) plots() []page.Plot {
	var ttft, tail, latency []float64
	var over, hit, must, events points // events: a time, and one request more or fewer
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
	under, busy := 0.0, points{}
	for _, e := range events {
		busy = append(busy, [2]float64{e[0], under}, [2]float64{e[0], under + e[1]})
		under += e[1]
	}
	dots := over.line("")
	dots.Dots = true
	expectedLine := must.line("must be, in a cache that never evicts")
	expectedLine.Reference = true
	return []page.Plot{
		{Title: "Time to first token, by when the request was due", XLabel: "due, s", YLabel: "s", Series: []page.Series{dots}},
		{Title: "Share of requests within a time", XLabel: "ms", YLabel: "share", LogX: true, Series: []page.Series{cumulative(ttft).line("time to first token"), cumulative(latency).line("whole request")}},
		{Title: "Papers' TBT: share of requests whose longest tenth of gaps is within a time", XLabel: "ms", YLabel: "share", LogX: true, Series: []page.Series{cumulative(tail).line("")}},
		{Title: "Requests under way", XLabel: "s", YLabel: "requests", Series: []page.Series{busy.line("")}},
		{Title: "Cached tokens, summed up", XLabel: "line of the trace", YLabel: "tokens", Series: []page.Series{expectedLine, hit.line("cached")}},
	}
}

// cumulative is the distribution of values.
func cumulative(values []float64) points {
	slices.Sort(values)
	p := make(points, len(values))
	for i, v := range values {
		p[i] = [2]float64{v, float64(i+1) / float64(len(values))}
	}
	return p
}

// thin leaves out points evenly, never the last.
func thin(p points) points {
	if len(p) <= maxPoints {
		return p
	}
	kept := make(points, 0, maxPoints)
	for i := range maxPoints {
		kept = append(kept, p[i*(len(p)-1)/(maxPoints-1)])
	}
	return kept
}
