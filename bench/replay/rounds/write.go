package rounds

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// WriteJSON writes one line.
func (r *Result) WriteJSON(out io.Writer) error {
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return fmt.Errorf("writing the rounds: %w", err)
	}
	return nil
}

// WriteText writes a table for people.
func (r *Result) WriteText(out io.Writer) error {
	fmt.Fprintf(out, "%s, %d rounds; times to first token in ms, ratios to %s with 95 %% intervals over rounds and requests\n", r.Trace, r.Rounds, r.Baseline)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "store\tanswered\tcached tokens\tmust be\tas expected\tmean\tp50\tp99\tmean's ratio\tmedian ratio\tmean's ratio, shared\t")
	for i := range r.Systems {
		s := &r.Systems[i]
		fmt.Fprintf(w, "%s\t%d of %d\t%d\t%d\t%d\t%.1f\t%.1f\t%.1f\t%s\t%s\t%s\t\n", s.Name, s.Answered, s.Requests, s.CachedTokens, s.MustTokens, s.AsExpected,
			s.MeanMS, s.MedianMS, s.P99MS, show(s.MeanRatio), show(s.MedianRatio), show(s.SharedRatio))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing the rounds: %w", err)
	}
	return nil
}

// WriteHTML writes a page that opens without a network.
func (r *Result) WriteHTML(out io.Writer) error {
	p := page.Page{Title: "Replays of " + r.Trace, Lead: []string{fmt.Sprintf("%d rounds, each store once a round, one engine at a time.", r.Rounds)}, Sections: []page.Section{r.Section()}}
	return p.Write(out)
}

// Section is the result on a page.
func (r *Result) Section() page.Section {
	t := page.Table{Columns: []string{"store", "answered", "cached tokens", "must be", "as expected", "mean, ms", "p50", "p99", "mean's ratio", "median ratio", "mean's ratio of requests that share"}}
	cumulative := page.Plot{Title: "Share of requests with their first token within a time, " + r.Trace, XLabel: "ms", YLabel: "share", LogX: true}
	rounds := page.Plot{Title: "Mean time to first token to " + r.Baseline + "'s, by round", XLabel: "round", YLabel: "ratio"}
	for i := range r.Systems {
		s := &r.Systems[i]
		expected := page.Cell{Text: fmt.Sprint(s.AsExpected)}
		if s.Name != r.Baseline && s.AsExpected < s.Answered {
			expected.Mark = page.Bad
		}
		row := append(page.Text(s.Name, fmt.Sprintf("%d of %d", s.Answered, s.Requests), fmt.Sprint(s.CachedTokens), fmt.Sprint(s.MustTokens)), expected)
		t.Rows = append(t.Rows, append(row, page.Text(fmt.Sprintf("%.1f", s.MeanMS), fmt.Sprintf("%.1f", s.MedianMS), fmt.Sprintf("%.1f", s.P99MS), show(s.MeanRatio), show(s.MedianRatio), show(s.SharedRatio))...))
		line := page.Series{Name: s.Name, X: s.times, Reference: s.Name == r.Baseline}
		for k := range s.times {
			line.Y = append(line.Y, float64(k+1)/float64(len(s.times)))
		}
		cumulative.Series = append(cumulative.Series, line)
		if len(s.ByRound) > 0 {
			by := page.Series{Name: s.Name, Y: s.ByRound}
			for k := range s.ByRound {
				by.X = append(by.X, float64(k+1))
			}
			rounds.Series = append(rounds.Series, by)
		}
	}
	return page.Section{
		Title: r.Trace, Tables: []page.Table{t}, Plots: []page.Plot{cumulative, rounds},
		Notes: []string{"Must be: what a prefix cache that never evicts has of these requests, one at a time. Ratios are to " + r.Baseline + ", with 95 % intervals over rounds and requests."},
	}
}

func show(i *compare.Interval) string {
	if i == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]", i.Value, i.Low, i.High)
}
