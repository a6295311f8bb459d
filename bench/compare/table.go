package compare

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable prints the figures for people.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s, %d cores, %d GiB, load at begin %s; %d of %d pairs beside other work\n", r.Machine.CPUModel, r.Machine.CPUs, r.Machine.MemoryGiB, r.Machine.Load,
		r.DisturbedPairs, len(r.Pairs))
	if r.Options.Nap {
		fmt.Fprintln(w, "all engines sleep 50 µs where vLLM yields in a loop (--nap)")
	}
	if len(r.Warm) > 0 {
		fmt.Fprintln(w, "\nwarm hit: median time to first token in ms; overhead = store-warm less engine-warm, 95 % interval")
		fmt.Fprintln(w, "model\ttokens\tsystem\tpairs\tstore-warm\tengine-warm\toverhead\t\tover null\t\tcached\twrong\t")
		for _, row := range r.Warm {
			over, bounds := "", ""
			if row.OverNullMs != nil {
				over, bounds = fmt.Sprintf("%.2f", row.OverNullMs.Value), bounded(*row.OverNullMs)
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%d\t%d\t\n", row.Model, row.Tokens, row.System, row.Pairs,
				row.StoreWarmMs, row.EngineWarmMs, row.OverheadMs.Value, bounded(row.OverheadMs), over, bounds, row.LeastCachedTokens, row.WrongOutputs)
		}
	}
	if len(r.Cold) > 0 {
		fmt.Fprintln(w, "\ncold: median time to first token in ms; ratio to the engine alone, 95 % interval")
		fmt.Fprintln(w, "model\ttokens\tsystem\tpairs\tttft\tratio\t\t")
		for _, row := range r.Cold {
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.3f\t%s\t\n", row.Model, row.Tokens, row.System, row.Pairs, row.TTFTMs, row.Ratio.Value, bounded(row.Ratio))
		}
	}
	if len(r.Overlap) > 0 {
		fmt.Fprintln(w, "\noverlap: prompts arriving while earlier ones are stored and one request decodes; times in ms, ratios to the engine alone")
		fmt.Fprintln(w, "model\ttokens\tsystem\trounds\tmedian\tp99\tratio\t\tdecode gap p99\tCPU s\tCPU ratio\t\t")
		for _, row := range r.Overlap {
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.1f\t%.3f\t%s\t%.1f\t%.2f\t%.3f\t%s\t\n", row.Model, row.Tokens, row.System, row.Rounds,
				row.MedianMs.Value, row.P99Ms.Value, row.MedianRatio.Value, bounded(row.MedianRatio), row.GapP99Ms,
				row.CPUSeconds.Value, row.CPURatio.Value, bounded(row.CPURatio))
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	for _, t := range r.Targets {
		verdict := "met"
		if !t.Met {
			verdict = "NOT met"
		}
		fmt.Fprintf(out, "\n%s %s %d tokens: %.3f, limit %.3f, excess %.3f %s: %s (%s)", t.Model, t.Part, t.Tokens, t.Value, t.Limit,
			t.Excess.Value, bounded(t.Excess), verdict, t.What)
	}
	fmt.Fprintln(out)
	return nil
}

func bounded(i Interval) string { return fmt.Sprintf("[%.3g, %.3g]", i.Low, i.High) }
