package router

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
)

// Result of a run. Times are in milliseconds.
type Result struct {
	Rate         float64 `json:"requests_per_second"`
	Engines      int     `json:"engines"`
	PromptTokens int     `json:"prompt_tokens"`
	Kinds        []Kind  `json:"kinds"`
}

// Kind is what was measured of a kind of prompts.
type Kind struct {
	Prompts  string           `json:"prompts"`
	Pairs    int              `json:"pairs"`
	Straight Times            `json:"straight"`
	Through  Times            `json:"through"`
	Added    compare.Interval `json:"added_median"`
}

// Times to the first byte.
type Times struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
}

const milliseconds = 1e3

func timesOf(seconds []float64) Times {
	return Times{milliseconds * compare.Median(seconds), milliseconds * compare.Quantile(seconds, 0.9), milliseconds * compare.Quantile(seconds, 0.99)}
}

func (r *Result) add(kind string, pairs []pair) {
	straight, through := make([]float64, len(pairs)), make([]float64, len(pairs))
	for i, p := range pairs {
		straight[i], through[i] = p.straight, p.through
	}
	added := compare.Bootstrap(len(pairs), 1, func(which []int) float64 {
		a, b := make([]float64, len(which)), make([]float64, len(which))
		for i, at := range which {
			a[i], b[i] = straight[at], through[at]
		}
		return milliseconds * (compare.Median(b) - compare.Median(a))
	})
	r.Kinds = append(r.Kinds, Kind{kind, len(pairs), timesOf(straight), timesOf(through), added})
}

// JSON writes the result as one object.
func (r *Result) JSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("bench/router: %w", err)
	}
	return nil
}

// Print writes the result as a table.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "Time to the first byte in ms; %g requests a second each way, %d engines, prompts of %d tokens.\n\n", r.Rate, r.Engines, r.PromptTokens)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "prompts\tpairs\tstraight: median\tP90\tP99\tthrough: median\tP90\tP99\tadded to the median\t")
	for _, k := range r.Kinds {
		fmt.Fprintf(table, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f [%.3f, %.3f]\t\n", k.Prompts, k.Pairs,
			k.Straight.Median, k.Straight.P90, k.Straight.P99, k.Through.Median, k.Through.P90, k.Through.P99, k.Added.Value, k.Added.Low, k.Added.High)
	}
	_ = table.Flush() // errors of w are its owner's to see
}
