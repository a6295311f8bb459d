package suite

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/lookup"
)

func lookups() Part {
	return Part{
		Name: "lookup", Title: "Lookups over the real socket, beside vLLM's own lookup server", Needs: []Need{needMooncake},
		Quick: 120 * time.Second, Full: 10 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Bench, "lookup", "--binaries", s.Binaries, "--python", s.Python, "--rounds", strconv.Itoa(by(s, 15, 60)), "--json"}
		},
		Read: func(s *Setting) (*Found, error) { return readLookup(s.Output("lookup")) },
	}
}

func clusterLookups() Part {
	return Part{
		Name: "lookup-cluster", Title: "Lookups of what is in a Mooncake cluster and not on the node", Needs: []Need{needMooncake},
		Quick: 100 * time.Second, Full: 10 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Bench, "lookup", "--cluster", "--binaries", s.Binaries, "--python", s.Python, "--rounds", strconv.Itoa(by(s, 5, 40)), "--json"}
		},
		Read: func(s *Setting) (*Found, error) { return readLookup(s.Output("lookup-cluster")) },
	}
}

func readLookup(path string) (*Found, error) {
	var r lookup.Result
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	found := &Found{}
	if r.Others > 0 {
		found.Notes = append(found.Notes, fmt.Sprintf("%d chunks asked, %d others in the index; times in the client's process.", r.Asked, r.Others))
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		f := Figure{
			Name: fmt.Sprintf("%s; server %s, client %s", row.Question, row.Server, row.Client), Unit: "us", Value: row.MedianMicros,
			Spread: &Spread{row.P10Micros, row.P90Micros, tenths}, Samples: row.Samples,
		}
		if row.TargetMicros > 0 {
			f.atMost(row.TargetMicros)
		}
		if row.Ratio > 0 {
			f.Ratio = &Ratio{Value: row.Ratio, To: "in-tree"}
			if row.TargetRatio > 0 {
				f.ratioAtMost(row.TargetRatio)
			}
		}
		found.Figures = append(found.Figures, f)
	}
	for i := range r.Crowds {
		c := &r.Crowds[i]
		f := Figure{
			Name: fmt.Sprintf("%s; %d clients at once, p99", c.Question, c.Clients), Unit: "us", Value: c.P99Micros, Samples: c.Samples,
			Ratio: &Ratio{Value: c.Ratio, To: "median"},
		}
		f.ratioAtMost(lookup.CrowdSpread)
		found.Figures = append(found.Figures, f)
	}
	if len(found.Figures) > 0 {
		plot := barsOf("Lookups, median and p10 to p90", "us", found.Figures[:len(r.Rows)], func(f *Figure) string {
			return strings.NewReplacer("; server ", " ", ", client ", "/").Replace(f.Name)
		})
		plot.LogY = true
		found.Plots = append(found.Plots, plot)
	}
	return found, nil
}
