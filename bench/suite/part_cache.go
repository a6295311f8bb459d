package suite

import (
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/cache"
	"github.com/mooncake-sidecar/sidecar/bench/page"
)

func cachePolicies() Part {
	return Part{
		Name: "cache", Title: "Hits of eviction policies over a trace of conversations", Needs: []Need{needTraces},
		Quick: 45 * time.Second, Full: 10 * time.Minute,
		Command: func(s *Setting) []string {
			policies, capacities := by(s, "lru,hazard,sieve,min", "lru,hazard,sieve,lfu,fifo,min"), by(s, "5000,10000,30000", "1000,2000,5000,10000,20000,30000,50000,100000")
			return []string{s.Bench, "cache", "--trace", s.trace("conversation"), "--policy", policies, "--capacity", capacities, "--json"}
		},
		Read: func(s *Setting) (*Found, error) { return readCache(s.Output("cache")) },
	}
}

func readCache(path string) (*Found, error) {
	results, err := readLines[cache.Result](path)
	if err != nil {
		return nil, err
	}
	best := map[int]float64{}
	for i := range results {
		if results[i].Policy == cache.MIN {
			best[results[i].Capacity] = results[i].BlockHitRatio
		}
	}
	found := &Found{Notes: []string{"Shares of the blocks asked for, computed, not timed. Min knows the future: no policy hits more."}}
	plot := page.Plot{Title: "Hits by capacity", XLabel: "blocks of 512 tokens", YLabel: "share of blocks", LogX: true}
	for i := range results {
		r := &results[i]
		f := Figure{Name: fmt.Sprintf("%s, %d blocks", r.Policy, r.Capacity), Value: r.BlockHitRatio}
		if most := best[r.Capacity]; most > 0 && r.Policy != cache.MIN {
			f.Ratio = &Ratio{Value: r.BlockHitRatio / most, To: "min"}
		}
		found.Figures = append(found.Figures, f)
		at := slices.IndexFunc(plot.Series, func(s page.Series) bool { return s.Name == r.Policy })
		if at < 0 {
			at = len(plot.Series)
			plot.Series = append(plot.Series, page.Series{Name: r.Policy, Reference: r.Policy == cache.MIN})
		}
		plot.Series[at].X, plot.Series[at].Y = append(plot.Series[at].X, float64(r.Capacity)), append(plot.Series[at].Y, r.BlockHitRatio)
	}
	found.Plots = append(found.Plots, plot)
	return found, nil
}
