package lookup

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Targets of a lookup on an idle machine.
const (
	// shareOfInTree is the most of the in-tree server's time that ours may take.
	shareOfInTree = 0.02
	// CrowdSpread is the most that the slowest hundredth may take over the median.
	CrowdSpread = 10
)

// Row is what one client saw of one server for one question.
type Row struct {
	Question string `json:"question"`
	// Client is "vllm" (its own client, in Python), "shim" (ours, in Python, on a
	// lookup channel), "go" (on the lookup socket) or "go chain" (on a channel, asking
	// as the shim does).
	Client string `json:"client"`
	// Server is "ours" or "intree".
	Server       string  `json:"server"`
	Samples      int     `json:"samples"`
	MedianMicros float64 `json:"median_us"`
	P10Micros    float64 `json:"p10_us"`
	P90Micros    float64 `json:"p90_us"`
	// TargetMicros is the most that the median may be, 0 for no target.
	TargetMicros float64 `json:"target_us,omitempty"`
	// Ratio is the median over the in-tree server's to vLLM's client for the same
	// question, 0 where there is none, and for clients in Go. It is judged where
	// there is a target.
	Ratio float64 `json:"ratio_to_intree,omitempty"`
	// TargetRatio is the most that Ratio may be, 0 for no target.
	TargetRatio float64 `json:"target_ratio,omitempty"`
}

// Crowd is what many clients at once saw.
type Crowd struct {
	Question     string  `json:"question"`
	Clients      int     `json:"clients"`
	Samples      int     `json:"samples"`
	MedianMicros float64 `json:"median_us"`
	P99Micros    float64 `json:"p99_us"`
	// Ratio is the slowest hundredth's over the median.
	Ratio float64 `json:"p99_to_median"`
}

// Result is a whole run.
type Result struct {
	Asked  int `json:"asked_chunks"`
	Others int `json:"other_chunks"`
	// Scattered: the asked chunks lie between the others, not in one piece.
	Scattered bool    `json:"scattered"`
	Rows      []Row   `json:"rows"`
	Crowds    []Crowd `json:"crowds"`
	// Missed are the targets that were not met, in words.
	Missed []string `json:"missed"`
}

// quantile of samples in nanoseconds, in microseconds; NaN of none.
func quantile(nanos []int64, q float64) float64 {
	if len(nanos) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(nanos))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]) / 1e3
}

func rowOf(q *question, client, server string, nanos []int64) Row {
	return Row{
		Question: q.Name, Client: client, Server: server, Samples: len(nanos),
		MedianMicros: quantile(nanos, 0.5), P10Micros: quantile(nanos, 0.1), P90Micros: quantile(nanos, 0.9),
	}
}

func crowdOf(q *question, clients int, nanos []int64) Crowd {
	c := Crowd{Question: q.Name, Clients: clients, Samples: len(nanos), MedianMicros: quantile(nanos, 0.5), P99Micros: quantile(nanos, 0.99)}
	c.Ratio = c.P99Micros / c.MedianMicros
	return c
}

// sharesOf has the share of the in-tree server's time for all questions that have
// a limit.
func sharesOf(limits map[string]float64) map[string]float64 {
	shares := map[string]float64{}
	for name := range limits {
		shares[name] = shareOfInTree
	}
	return shares
}

// judge fills in ratios and what is missed. limits are the targets by question,
// for our server.
// shares the most of the in-tree server's time.
func (r *Result) judge(limits, shares map[string]float64) {
	r.Missed = []string{}
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Server != ours {
			continue
		}
		row.TargetMicros = limits[row.Question]
		if row.TargetMicros > 0 && row.MedianMicros > row.TargetMicros {
			r.Missed = append(r.Missed, fmt.Sprintf("%s, client %s: %.0f us, at most %.0f", row.Question, row.Client, row.MedianMicros, row.TargetMicros))
		}
		at := slices.IndexFunc(r.Rows, func(o Row) bool {
			return o.Server == theirs && o.Question == row.Question
		})
		if at < 0 || strings.HasPrefix(row.Client, "go") {
			continue
		}
		row.Ratio = row.MedianMicros / r.Rows[at].MedianMicros
		row.TargetRatio = shares[row.Question]
		if share := row.TargetRatio; share > 0 && row.Ratio > share {
			r.Missed = append(r.Missed, fmt.Sprintf("%s, client %s: %.2f %% of the in-tree server's time, at most %.0f %%",
				row.Question, row.Client, 100*row.Ratio, 100*share))
		}
	}
	for i := range r.Crowds {
		if c := &r.Crowds[i]; c.Ratio > CrowdSpread {
			r.Missed = append(r.Missed, fmt.Sprintf("%s, %d clients: the slowest hundredth takes %.1f medians, at most %d", c.Question, c.Clients, c.Ratio, CrowdSpread))
		}
	}
}

// Print writes the result for people.
func (r *Result) Print(out io.Writer) {
	lie := "in one piece"
	if r.Scattered {
		lie = "scattered between them"
	}
	fmt.Fprintf(out, "%d chunks asked, %d others in the index, the asked %s; microseconds in the client's process\n", r.Asked, r.Others, lie)
	fmt.Fprintf(out, "%-26s %-8s %-7s %10s %10s %10s %8s %10s %8s %6s\n", "question", "client", "server", "median", "p10", "p90", "target", "of in-tree", "at most", "n")
	for i := range r.Rows {
		row := &r.Rows[i]
		target, ratio, most := "", "", ""
		if row.TargetMicros > 0 {
			target = fmt.Sprintf("%.0f", row.TargetMicros)
		}
		if row.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f %%", 100*row.Ratio)
		}
		if row.TargetRatio > 0 {
			most = fmt.Sprintf("%.0f %%", 100*row.TargetRatio)
		}
		fmt.Fprintf(out, "%-26s %-8s %-7s %10.0f %10.0f %10.0f %8s %10s %8s %6d\n", row.Question, row.Client, row.Server,
			row.MedianMicros, row.P10Micros, row.P90Micros, target, ratio, most, row.Samples)
	}
	for i := range r.Crowds {
		c := &r.Crowds[i]
		fmt.Fprintf(out, "%-26s %d clients at once: median %.0f, p99 %.0f, %.1f medians (n=%d)\n", c.Question, c.Clients, c.MedianMicros, c.P99Micros, c.Ratio, c.Samples)
	}
	for _, missed := range r.Missed {
		fmt.Fprintf(out, "MISSED  %s\n", missed)
	}
}

// JSON writes the result for programs.
func (r *Result) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(r)
}
