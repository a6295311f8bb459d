package suite

import (
	"fmt"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
)

func comparison() Part {
	return Part{
		Name: "compare", Title: "Warm hits behind real engines: ours, the in-tree connector, a connector that does nothing", Needs: []Need{needMooncake},
		Quick: 240 * time.Second, Full: 6 * time.Hour,
		Command: func(s *Setting) []string {
			args := []string{s.Bench, "compare", "--python", s.Python, "--out", s.File("compare.json"), "--json"}
			if s.Budget == Quick {
				return append(args, "--with", "null,intree,ours", "--parts", "warm", "--models", "kv2k", "--tokens", "2000", "--prompts", "2", "--rounds", "6")
			}
			if needFile("build/peers/lmcache", "make setup-bench")(s) != "" {
				args = append(args, "--with", "none,null,intree,ours")
			}
			return args
		},
		Read: func(s *Setting) (*Found, error) { return readCompare(s.File("compare.json")) },
	}
}

func readCompare(path string) (*Found, error) {
	var saved compare.Report
	if err := readJSON(path, &saved); err != nil {
		return nil, err
	}
	r := compare.NewReport(saved.Machine, saved.Options, saved.Pairs)
	found := &Found{Files: []string{"compare.json"}, Notes: []string{fmt.Sprintf("%d of %d pairs were measured beside other work.", r.DisturbedPairs, len(r.Pairs))}}
	cell := func(c compare.Cell) string {
		return c.Part + ", " + c.Model + ", " + strconv.Itoa(c.Tokens) + " tokens"
	}
	warm := len(found.Figures)
	for i := range r.Warm {
		row := &r.Warm[i]
		f := Figure{Name: fmt.Sprintf("%s: overhead of %s", cell(row.Cell), row.System), Unit: "ms", Value: row.OverheadMs.Value, Spread: ofInterval(row.OverheadMs), Samples: row.Pairs}
		if row.WrongOutputs > 0 {
			found.Notes = append(found.Notes, fmt.Sprintf("%s: %d wrong outputs of %s.", cell(row.Cell), row.WrongOutputs, row.System))
		}
		if row.System == compare.Ours {
			f.Targets = append(f.Targets, targetOf(r, row.Cell)...)
		}
		found.Figures = append(found.Figures, f)
	}
	if len(r.Warm) > 0 {
		found.Plots = append(found.Plots, barsOf("Overhead of a hit in the store", "ms", found.Figures[warm:], func(f *Figure) string { return f.Name }))
	}
	for i := range r.Cold {
		row := &r.Cold[i]
		f := Figure{
			Name: fmt.Sprintf("%s: time to first token with %s", cell(row.Cell), row.System), Unit: "ms", Value: row.TTFTMs, Samples: row.Pairs,
			Ratio: &Ratio{Value: row.Ratio.Value, To: compare.None, Spread: ofInterval(row.Ratio)},
		}
		if row.System == compare.Ours {
			f.Targets = append(f.Targets, targetOf(r, row.Cell)...)
		}
		found.Figures = append(found.Figures, f)
	}
	for i := range r.Overlap {
		row := &r.Overlap[i]
		found.Figures = append(found.Figures,
			Figure{
				Name: fmt.Sprintf("%s: time to first token with %s", cell(row.Cell), row.System), Unit: "ms", Value: row.MedianMs.Value, Spread: ofInterval(row.MedianMs), Samples: row.Rounds,
				Ratio: &Ratio{Value: row.MedianRatio.Value, To: compare.None, Spread: ofInterval(row.MedianRatio)},
			},
			Figure{
				Name: fmt.Sprintf("%s: CPU time with %s", cell(row.Cell), row.System), Unit: "s", Value: row.CPUSeconds.Value, Spread: ofInterval(row.CPUSeconds), Samples: row.Rounds,
				Ratio: &Ratio{Value: row.CPURatio.Value, To: compare.None, Spread: ofInterval(row.CPURatio)},
			})
	}
	return found, nil
}

// targetOf a cell as its report judges it: a wrong output misses it, too.
func targetOf(r *compare.Report, c compare.Cell) []Target {
	for _, t := range r.Targets {
		if t.Cell == c {
			of := "value"
			if c.Part == compare.PartCold {
				of = "ratio"
			}
			return []Target{{Of: of, Value: t.Value, Limit: t.Limit, Met: t.Met, Narrow: t.Excess.Low <= 0 && t.Excess.High > 0}}
		}
	}
	return nil
}
