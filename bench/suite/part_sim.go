package suite

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/retention"
	simreport "github.com/mooncake-sidecar/sidecar/bench/sim/report"
)

func simulator() Part {
	return Part{
		Name: "sim", Title: "The simulated cluster of the papers, their figures beside", Needs: []Need{needTraces},
		Quick: 150 * time.Second, Full: 30 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Bench, "sim", "report", "--json", "--seeds", strconv.Itoa(by(s, 1, 5)), "--trace", s.trace("conversation"), "--trace", s.trace("synthetic")}
		},
		Read: func(s *Setting) (*Found, error) { return readSim(s.Output("sim")) },
	}
}

// readSim shows the simulator's tables as they are; its specification's tolerances
// are held by its tests.
func readSim(path string) (*Found, error) {
	tables, err := readLines[simreport.Table](path)
	if err != nil {
		return nil, err
	}
	found := &Found{Notes: []string{"Computed on a virtual clock: the same on every machine. Traces give the same bytes with the same seeds."}}
	for i := range tables {
		t := &tables[i]
		s := t.Section()
		s.ID = fmt.Sprintf("sim-%s-%d", t.Name, i)
		found.Sections = append(found.Sections, s)
	}
	if found.Detail, err = json.Marshal(tables); err != nil {
		return nil, fmt.Errorf("keeping the tables: %w", err)
	}
	return found, nil
}

func retentions() Part {
	return Part{
		Name: "retention", Title: "What storing more of sliding windows brings and costs", Needs: []Need{needTraces},
		Quick: 60 * time.Second, Full: 5 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Bench, "retention", "--trace", s.trace("conversation"), "--json", "--models", by(s, "gpt-oss-20b", strings.Join(retention.Models(), ","))}
		},
		Read: func(s *Setting) (*Found, error) { return readRetention(s.Output("retention")) },
	}
}

func readRetention(path string) (*Found, error) {
	rows, err := readLines[retention.Row](path)
	if err != nil {
		return nil, err
	}
	found := &Found{Notes: []string{"Shares of the tokens of a conversation trace that are found in a store that never evicts, and what it holds in the end; computed, not timed."}}
	for i := range rows {
		r := &rows[i]
		name := fmt.Sprintf("%s, store_retention %s", r.Model, map[int]string{0: "engine", -1: "dense"}[r.Interval])
		if r.Interval > 0 {
			name = fmt.Sprintf("%s, store_retention %d", r.Model, r.Interval)
		}
		found.Figures = append(found.Figures, Figure{Name: name + ": tokens found", Value: r.HitShare}, Figure{Name: name + ": stored", Unit: "GiB", Value: float64(r.Bytes) / (1 << 30)})
	}
	return found, nil
}
