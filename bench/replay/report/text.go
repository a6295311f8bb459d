package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
)

// listedText is how many faults of a kind the text names.
const listedText = 5

// WriteText writes the report for people.
func (r *Report) WriteText(out io.Writer) error {
	var b strings.Builder
	s := r.Summary
	fmt.Fprintf(&b, "%d of %d requests answered in %.1f s: %.3g requests/s, %.0f prompt and %.0f output tokens/s\n",
		s.Answered, s.Requests, s.Seconds, s.RequestsPerS, s.PromptTokensPerS, s.OutputTokensPerS)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ms\tcount\tmean\tp50\tp90\tp99\tp99.9\tmax\t")
	for _, row := range r.spreads() {
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", row.name, row.Count, row.Mean, row.P50, row.P90, row.P99, row.P999, row.Max)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	for _, line := range r.sentences() {
		fmt.Fprintln(&b, line)
	}
	for _, list := range r.faults() {
		fmt.Fprintf(&b, "%s: %d\n", list.name, list.count)
		for i, line := range list.lines {
			if i == listedText {
				fmt.Fprintln(&b, "  ...")
				break
			}
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

type spread struct {
	name string
	*record.Spread
}

func (r *Report) spreads() []spread {
	s := r.Summary
	return []spread{
		{"time to first token", &s.TTFT}, {"between tokens", &s.TBT}, {"papers' TBT (longest tenth)", &s.TailTBT},
		{"whole request", &s.Latency}, {"sent behind schedule", &s.SendLag},
	}
}

// sentences are what no table shows.
func (r *Report) sentences() []string {
	s := r.Summary
	g, c := &s.Goodput, &s.Cached
	lines := []string{
		fmt.Sprintf("goodput: %.1f %% of requests (%.3g/s) had their first token within %g ms and gaps within %g ms; %d kept the first, %d the second",
			100*g.Share, g.RequestsPerS, g.TTFTms, g.TBTms, g.KeptTTFT, g.KeptTBT),
		fmt.Sprintf("cached: %d prompt tokens (%.1f %%); a cache that never evicts has %d to %d, one request at a time %d", c.Tokens, 100*c.Share, c.Must, c.May, c.InOrder),
		"requests: " + c.String(),
	}
	if v := r.Versus; v != nil {
		line := fmt.Sprintf("against %s: no request in common", v.Baseline)
		if v.MeanRatio != nil {
			line = fmt.Sprintf("against %s, %d requests: mean time to first token x %.3f [%.3f, %.3f], median of ratios %.3f [%.3f, %.3f]", v.Baseline, v.Pairs,
				v.MeanRatio.Value, v.MeanRatio.Low, v.MeanRatio.High, v.MedianRatio.Value, v.MedianRatio.Low, v.MedianRatio.High)
		}
		lines = append(lines, line)
	}
	if r.Ended != "" {
		lines = append(lines, fmt.Sprintf("ended early, %d requests were not sent: %s", r.NotSent, r.Ended))
	}
	if r.TraceError != "" {
		lines = append(lines, "the trace was not read to its end: "+r.TraceError)
	}
	return lines
}

// faultList is what went wrong in one way.
type faultList struct {
	name  string
	count int
	lines []string
}

// faults lists what went wrong.
func (r *Report) faults() []faultList {
	var lists []faultList
	for _, kind := range r.FaultsBy {
		list := faultList{name: "trace: " + kind.Name, count: kind.Count}
		for _, f := range r.Faults {
			if f.Kind == kind.Name {
				list.lines = append(list.lines, f.Why)
			}
		}
		lists = append(lists, list)
	}
	if r.SkippedN > 0 {
		list := faultList{name: "not sent", count: r.SkippedN}
		for _, s := range r.Skipped {
			list.lines = append(list.lines, fmt.Sprintf("line %d: %s", s.Line, s.Why))
		}
		lists = append(lists, list)
	}
	for _, kind := range r.Summary.FailedBy {
		list := faultList{name: "failed: " + kind.Name, count: kind.Count}
		for _, f := range r.Failures {
			if f.Kind == kind.Name {
				list.lines = append(list.lines, fmt.Sprintf("line %d: %s", f.Line, f.Why))
			}
		}
		lists = append(lists, list)
	}
	return lists
}
