package suite

import (
	"fmt"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

func hooks() Part {
	return Part{
		Name: "hooks", Title: "Time inside connector hooks of two real engines, ours and the in-tree connector's", Needs: []Need{needMooncake},
		Quick: 240 * time.Second, Full: 20 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Python, "bench/hooks/run.py", "--rounds", strconv.Itoa(by(s, 3, 9)), "--prompts", strconv.Itoa(by(s, 5, 12)), "--json", s.File("hooks.json")}
		},
		Read: func(s *Setting) (*Found, error) { return readHooks(s.File("hooks.json")) },
	}
}

func readHooks(path string) (*Found, error) {
	var result struct {
		Rounds struct {
			Ours   []float64 `json:"ours"`
			InTree []float64 `json:"in_tree"`
		} `json:"us_per_step_by_round"`
		Target float64 `json:"target"`
	}
	if err := readJSON(path, &result); err != nil {
		return nil, err
	}
	r := &result.Rounds
	if len(r.Ours) == 0 || len(r.Ours) != len(r.InTree) {
		return nil, fmt.Errorf("reading %s: %d rounds of ours, %d of the in-tree connector", path, len(r.Ours), len(r.InTree))
	}
	ratios := make([]float64, len(r.Ours))
	for i := range ratios {
		ratios[i] = r.Ours[i] / r.InTree[i]
	}
	ours := figureOf("ours, all hooks of a step that runs the model", "us", r.Ours)
	shares := figureOf("", "", ratios)
	ours.Ratio = &Ratio{Value: shares.Value, To: "in-tree", Spread: shares.Spread}
	ours.ratioAtMost(result.Target)
	return &Found{Files: []string{"hooks.json"}, Figures: []Figure{ours, figureOf("in-tree, the same", "us", r.InTree)}}, nil
}

func hookSteps() Part {
	return Part{
		Name: "hook-steps", Title: "Time inside hooks with 256 running requests and for new ones, without a model", Needs: []Need{needMooncake},
		Quick: 100 * time.Second, Full: 40 * time.Minute,
		Command: func(s *Setting) []string {
			args := []string{s.Python, "bench/hooks/steps.py", "--json", s.File("hook-steps.json")}
			if s.Budget == Quick {
				args = append(args, "--case", "1", "--steps", "100", "--long", "3", "--short", "10")
			}
			return args
		},
		Read: func(s *Setting) (*Found, error) { return readSteps(s.File("hook-steps.json")) },
	}
}

// stepRole is one role's part in a row of bench/hooks/steps.py.
type stepRole struct {
	Micros map[string]struct{ Median, P99 float64 } `json:"us"`
	Ratio  struct{ Median, Low, High float64 }      `json:"ratio"`
	Target *float64                                 `json:"target_us"`
}

func readSteps(path string) (*Found, error) {
	var result struct {
		Clock string `json:"clock"`
		Rows  []struct {
			Case      string   `json:"case"`
			What      string   `json:"what"`
			Steps     int      `json:"steps"`
			Scheduler stepRole `json:"scheduler"`
			Worker    stepRole `json:"worker"`
		} `json:"rows"`
	}
	if err := readJSON(path, &result); err != nil {
		return nil, err
	}
	found := &Found{Files: []string{"hook-steps.json"}, Notes: []string{fmt.Sprintf("Both connectors get the same steps by turns; the clock is the %s's.", result.Clock), "The ratio's spread is over ten parts of the run."}}
	plot := page.Plot{Title: "Hooks of a step", YLabel: "us", LogY: true, Series: []page.Series{{Name: "ours"}, {Name: "in-tree", Reference: true}}}
	for i := range result.Rows {
		row := &result.Rows[i]
		for _, role := range []struct {
			name string
			part *stepRole
		}{{"scheduler", &row.Scheduler}, {"worker", &row.Worker}} {
			ours, theirs := role.part.Micros["ours"], role.part.Micros["in_tree"]
			f := Figure{
				Name: fmt.Sprintf("%s: %s, %s", row.Case, row.What, role.name), Unit: "us", Value: ours.Median, Samples: row.Steps,
				Spread: &Spread{ours.Median, ours.P99, "median to p99"},
				Ratio:  &Ratio{Value: role.part.Ratio.Median, To: "in-tree", Spread: &Spread{role.part.Ratio.Low, role.part.Ratio.High, extremes}},
			}
			if role.part.Target != nil {
				f.Targets = append(f.Targets, judged("value", f.Value, *role.part.Target, false, nil))
			}
			found.Figures = append(found.Figures, f)
			plot.Names = append(plot.Names, row.What+", "+role.name)
			plot.Series[0].Y, plot.Series[1].Y = append(plot.Series[0].Y, ours.Median), append(plot.Series[1].Y, theirs.Median)
		}
	}
	found.Plots = append(found.Plots, plot)
	return found, nil
}
