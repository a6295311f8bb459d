package indexer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Result is a run with all of its samples.
type Result struct {
	Load    workload.Options `json:"load"`
	Full    workload.Options `json:"full"`
	Holders int              `json:"holders"`
	// Ours is the system that the others are compared with.
	Ours  string       `json:"ours"`
	Loads []LoadSample `json:"loads"`
	Fulls []LoadSample `json:"fulls"`
	Asks  []AskSample  `json:"asks"`
}

// LoadSample is one load.
type LoadSample struct {
	System  string `json:"system"`
	Threads int    `json:"threads"`
	Round   int    `json:"round"`
	Loaded
}

// AskSample is the median of one turn of questions.
type AskSample struct {
	System string        `json:"system"`
	Form   string        `json:"form"`
	Tokens int           `json:"tokens"`
	Hit    bool          `json:"hit"`
	Round  int           `json:"round"`
	Median time.Duration `json:"median_ns"`
	// CPU is a question's share of the processor time of all of the turn.
	CPU time.Duration `json:"cpu_ns"`
}

// what is the name of a question in a form.
func (s *AskSample) what(form string) string {
	hit := "miss"
	if s.Hit {
		hit = "hit"
	}
	return fmt.Sprintf("query, %d tokens, %s, %s", s.Tokens, hit, form)
}

// Row is a figure of a system, and the ratio of ours to it.
type Row struct {
	What, System string
	// Value is the median of the rounds, Low and High their tenth and ninetieth
	// hundredth.
	Value, Low, High float64
	Unit             string
	// Ours over this system's: the median of the rounds' ratios, with its 95 % bootstrap
	// interval; zero for ours.
	Ours compare.Interval
}

// Rows are the figures of a result.
func (r *Result) Rows() []Row {
	t := table{}
	for _, s := range r.Loads {
		blocks := float64(s.Blocks)
		what := fmt.Sprintf("store, %d threads", s.Threads)
		t.add(what, s.System, "M blocks/s", s.Round, blocks/s.Took.Seconds()/1e6)
		t.add(what+", processor", s.System, "s/M blocks", s.Round, s.CPU.Seconds()/blocks*1e6)
		if s.Sender > 0 {
			t.add(what+", sender's processor", s.System, "s/M blocks", s.Round, s.Sender.Seconds()/blocks*1e6)
		}
		t.add(fmt.Sprintf("memory of %d blocks", s.Blocks), s.System, "B/block", s.Round*64+s.Threads, float64(s.Bytes)/blocks)
	}
	for _, s := range r.Fulls {
		t.add(fmt.Sprintf("memory of %d blocks", s.Blocks), s.System, "B/block", -1, float64(s.Bytes)/float64(s.Blocks))
	}
	for _, s := range r.Asks {
		t.add(s.what(s.Form), s.System, "ms", s.Round, float64(s.Median)/1e6)
		t.add(s.what(s.Form)+", processor", s.System, "ms", s.Round, float64(s.CPU)/1e6)
	}
	// Who can't be asked in binary is compared in what it understands.
	binary := slices.ContainsFunc(r.Asks, func(s AskSample) bool { return s.Form == formBinary })
	for _, s := range r.Asks {
		if binary && s.System != r.Ours && s.Form == formJSON {
			t.add(s.what(formBinary), s.System+", JSON", "ms", s.Round, float64(s.Median)/1e6)
			t.add(s.what(formBinary)+", processor", s.System+", JSON", "ms", s.Round, float64(s.CPU)/1e6)
		}
	}
	return t.rows(r.Ours)
}

// figure is one cell before it is summed up: a value for each round.
type figure struct {
	what, system, unit string
	rounds             map[int]float64
}

// table keeps figures in the order in which they came.
type table []*figure

func (t *table) add(what, system, unit string, round int, value float64) {
	i := slices.IndexFunc(*t, func(f *figure) bool { return f.what == what && f.system == system })
	if i < 0 {
		i = len(*t)
		*t = append(*t, &figure{what, system, unit, map[int]float64{}})
	}
	(*t)[i].rounds[round] = value
}

// rows sums figures up, ours first of each thing that was measured.
func (t table) rows(ours string) []Row {
	var rows []Row
	seen := map[string]bool{}
	for _, f := range t {
		if seen[f.what] {
			continue
		}
		seen[f.what] = true
		same := slices.DeleteFunc(slices.Clone(t), func(other *figure) bool { return other.what != f.what })
		slices.SortStableFunc(same, func(a, b *figure) int { return number(b.system == ours) - number(a.system == ours) })
		for _, other := range same {
			rows = append(rows, row(same[0], other, ours))
		}
	}
	return rows
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// row sums up a figure, and compares the first one with it if that is ours.
func row(first, f *figure, ours string) Row {
	var values []float64
	for _, v := range f.rounds {
		values = append(values, v)
	}
	r := Row{What: f.what, System: f.system, Unit: f.unit, Value: compare.Median(values), Low: compare.Quantile(values, 0.1), High: compare.Quantile(values, 0.9)}
	if first == f || first.system != ours {
		return r
	}
	var ratios []float64
	for round, v := range f.rounds {
		if own, both := first.rounds[round]; both {
			ratios = append(ratios, own/v)
		}
	}
	slices.Sort(ratios) // the rounds' order is a map's
	r.Ours = compare.Bootstrap(len(ratios), 1, func(pairs []int) float64 {
		drawn := make([]float64, len(pairs))
		for i, p := range pairs {
			drawn[i] = ratios[p]
		}
		return compare.Median(drawn)
	})
	return r
}

// Print writes the figures for people.
func (r *Result) Print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "what\tsystem\tmedian\tp10-p90\tunit\tours / it\t95 %")
	for _, row := range r.Rows() {
		fmt.Fprintf(out, "%s\t%s\t%.4g\t%.4g-%.4g\t%s", row.What, row.System, row.Value, row.Low, row.High, row.Unit)
		if row.Ours.Value != 0 {
			fmt.Fprintf(out, "\t%.3g\t%.3g-%.3g", row.Ours.Value, row.Ours.Low, row.Ours.High)
		}
		fmt.Fprintln(out)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}

// JSON writes everything.
func (r *Result) JSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}

func medianTime(times []time.Duration) time.Duration {
	sorted := slices.SortedFunc(slices.Values(times), cmp.Compare[time.Duration])
	return sorted[len(sorted)/2]
}
