package coordinator_test

import (
	"encoding/json"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
)

// TestEveryHitCanBeLoaded is what all else is for: whatever a lookup answers,
// every chunk that a load of it fills is stored under the key that the load uses.
func TestEveryHitCanBeLoaded(t *testing.T) {
	generator := vllmdiff.NewGenerator(4)
	lookups, hits := 0, 0
	for range 60_000 {
		c := generator.Next()
		if c.Op != coordcases.OpLookup {
			continue
		}
		co, err := coordinator.New(c.Config())
		if err != nil {
			t.Fatal(err)
		}
		lookup, err := co.Lookup(c.Tokens, c.N, c.StoreFunc())
		if err != nil {
			continue // what can't be served is tested elsewhere
		}
		lookups++
		if lookup.HitTokens == 0 {
			continue
		}
		hits++
		if lookup.HitTokens >= c.Tokens || lookup.HitTokens%co.Alignment() != 0 || len(lookup.Tails) != len(c.Groups) {
			t.Fatalf("hit %d, tails %v of %s", lookup.HitTokens, lookup.Tails, encode(t, c))
		}
		tails := make([][2]int, len(lookup.Tails))
		for i, tail := range lookup.Tails {
			tails[i] = [2]int{tail.Group, tail.Tokens}
		}
		if err := c.Loadable(lookup.HitTokens, tails); err != nil {
			t.Fatalf("%v: %s", err, encode(t, c))
		}
	}
	if 2*hits < lookups {
		t.Errorf("only %d of %d lookups hit", hits, lookups)
	}
}

func encode(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
