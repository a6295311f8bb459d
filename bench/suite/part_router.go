package suite

import (
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/router"
)

func routers() Part {
	return Part{
		Name: "router", Title: "What the conductor's router adds to the first byte, beside requests that go straight",
		Quick: 60 * time.Second, Full: 15 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Bench, "router", "--each", by(s, "5s", "2m"), "--json"}
		},
		Read: func(s *Setting) (*Found, error) { return readRouter(s.Output("router")) },
	}
}

func readRouter(path string) (*Found, error) {
	var r router.Result
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	found := &Found{Notes: []string{fmt.Sprintf("%g requests a second each way, %d engines that answer at once, prompts of %d tokens.", r.Rate, r.Engines, r.PromptTokens)}}
	for i := range r.Kinds {
		k := &r.Kinds[i]
		found.Figures = append(found.Figures,
			Figure{Name: k.Prompts + ": added to the median", Unit: "ms", Value: k.Added.Value, Spread: ofInterval(k.Added), Samples: k.Pairs},
			Figure{Name: k.Prompts + ": p99 through the router", Unit: "ms", Value: k.Through.P99, Samples: k.Pairs, Ratio: ratioTo("straight", k.Through.P99, k.Straight.P99)})
	}
	return found, nil
}

// ratioTo another's value, nil if that is nothing.
func ratioTo(to string, value, other float64) *Ratio {
	if other == 0 {
		return nil
	}
	return &Ratio{Value: value / other, To: to}
}
