package suite

import (
	"slices"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/datapath"
	"github.com/mooncake-sidecar/sidecar/bench/page"
)

func datapaths() Part {
	return Part{
		Name: "datapath", Title: "Loads and stores through the daemons, without vLLM, beside a one-thread copy of the same pieces",
		Quick: 60 * time.Second, Full: 20 * time.Minute,
		Command: func(s *Setting) []string {
			args := []string{s.Bench, "datapath", "--build", "now=" + s.Binaries, "--rounds", strconv.Itoa(by(s, 3, 10)), "--out", s.File("datapath.json")}
			if s.Budget == Quick {
				args = append(args, "--only", "134MB")
			}
			return args
		},
		Read: func(s *Setting) (*Found, error) { return readDatapath(s.File("datapath.json")) },
	}
}

// jobs of the data path, with the copy that each is held against.
func jobs() [][3]string {
	return [][3]string{{"first", "", "first load"}, {"warm", "copy-in", "load"}, {"store", "", "first store"}, {"restore", "copy-out", "store"}, {"ahead", "copy-out", "store named ahead"}}
}

func readDatapath(path string) (*Found, error) {
	var samples []datapath.Sample
	if err := readJSON(path, &samples); err != nil {
		return nil, err
	}
	var sizes []string
	for i := range samples {
		if !slices.Contains(sizes, samples[i].Size) {
			sizes = append(sizes, samples[i].Size)
		}
	}
	found := &Found{Files: []string{"datapath.json"}, Notes: []string{"What the engine waits, in milliseconds; the ratio is of the copy's time by ours, over rounds: above 1 is faster than one thread copies. b is tokens in a block, l its pieces."}}
	plot := page.Plot{Title: "Speed, of one thread's copy", YLabel: "times", Names: sizes}
	for _, job := range jobs() {
		series := page.Series{Name: job[2]}
		for _, size := range sizes {
			walls, rounds := wallsOf(samples, size, job[0])
			if len(walls) == 0 {
				continue
			}
			f := figureOf(size+", "+job[2], "ms", walls)
			if job[1] != "" {
				_, copies := wallsOf(samples, size, job[1])
				var ratios []float64
				for round, wall := range rounds {
					if under := compare.Median(wall); under > 0 && len(copies[round]) > 0 {
						ratios = append(ratios, compare.Median(copies[round])/under)
					}
				}
				f.Ratio = &Ratio{Value: compare.Median(ratios), To: "copy's speed", Spread: spreadOf(ratios)}
				series.Y, series.Low, series.High = append(series.Y, f.Ratio.Value), append(series.Low, f.Ratio.Spread.Low), append(series.High, f.Ratio.Spread.High)
			}
			found.Figures = append(found.Figures, f)
		}
		if job[1] != "" {
			plot.Series = append(plot.Series, series)
		}
	}
	found.Plots = append(found.Plots, plot)
	return found, nil
}

// wallsOf a kind of job in milliseconds, all of them and by round.
func wallsOf(samples []datapath.Sample, size, kind string) (all []float64, rounds map[int][]float64) {
	rounds = map[int][]float64{}
	for i := range samples {
		if s := &samples[i]; s.Size == size && s.Kind == kind {
			all, rounds[s.Round] = append(all, s.Wall/1e3), append(rounds[s.Round], s.Wall/1e3)
		}
	}
	return all, rounds
}
