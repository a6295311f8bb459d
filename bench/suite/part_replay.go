package suite

import (
	"fmt"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/rounds"
)

func replays() Part {
	return Part{
		Name: "replay", Title: "A trace replayed against real engines, one request at a time: without a store, ours, the in-tree connector's", Needs: []Need{needMooncake},
		Quick: 300 * time.Second, Full: 2 * time.Hour,
		Command: func(s *Setting) []string {
			args := []string{s.Python, "bench/replay/live.py", "--bench", s.Bench, "--binaries", s.Binaries, "--out", s.File("replay"), "--limit", strconv.Itoa(by(s, 40, 300)), "--rounds", strconv.Itoa(by(s, 1, 5))}
			if s.Budget == Full && needTraces(s) == "" {
				args = append(args, "--trace", s.trace("conversation"), "--trace", s.trace("synthetic"))
			}
			return args
		},
		Read: func(s *Setting) (*Found, error) { return readReplays(s.File("replay/rounds.json")) },
	}
}

func readReplays(path string) (*Found, error) {
	results, err := readLines[rounds.Result](path)
	if err != nil {
		return nil, err
	}
	found := &Found{Files: []string{"replay/rounds.json"}, Notes: []string{"As expected: requests with exactly as many tokens cached as a cache that never evicts has, by the trace."}}
	for i := range results {
		r := &results[i]
		for j := range r.Systems {
			s := &r.Systems[j]
			name := fmt.Sprintf("%s, %s: ", r.Trace, s.Name)
			cached := Figure{Name: name + "share of requests as expected", Samples: s.Requests}
			if s.Requests > 0 {
				cached.Value = float64(s.AsExpected) / float64(s.Requests)
			}
			if s.Name == "ours" {
				cached.Targets = append(cached.Targets, judged("value", cached.Value, 1, true, nil))
			}
			ttft := Figure{Name: name + "mean time to first token", Unit: "ms", Value: s.MeanMS, Samples: s.Answered}
			if s.MeanRatio != nil {
				ttft.Ratio = &Ratio{Value: s.MeanRatio.Value, To: r.Baseline, Spread: ofInterval(*s.MeanRatio)}
			}
			found.Figures = append(found.Figures, cached, ttft)
			if s.SharedRatio != nil {
				found.Figures = append(found.Figures, Figure{
					Name: name + "the same, requests of which something must be cached, ratio to " + r.Baseline, Value: s.SharedRatio.Value, Spread: ofInterval(*s.SharedRatio), Samples: s.SharedPairs,
				})
			}
		}
	}
	return found, nil
}
