package coordinator_test

import (
	"math/rand/v2"
	"testing"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// TestOwnAnswers: explanations, answers that come in later and all else that vLLM
// has no answer for agree with what it has one for.
func TestOwnAnswers(t *testing.T) {
	generator := vllmdiff.NewGenerator(9)
	rng := rand.New(rand.NewPCG(9, 9))
	resumed := 0
	for range 20_000 {
		c := generator.Next()
		more, err := vllmdiff.CheckOwn(&c.Case, rng)
		if err != nil {
			t.Fatalf("%v: %s", err, encode(t, c))
		}
		if more {
			resumed++
		}
	}
	if resumed < 5000 {
		t.Errorf("only %d answers were pending", resumed)
	}
}

// TestAskStops is for callers that leave the iteration.
func TestAskStops(t *testing.T) {
	co := mustNew(t, fullConfig(16))
	got, err := co.Lookup(160, 10, func(int, int) kv.Existence { return kv.Unknown })
	if err != nil || len(got.Asks) != 1 || !got.Pending || got.HitTokens != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	n := 0
	for range got.Asks[0].Each {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("went on to %d", n)
	}
}

func fullConfig(block int) coordinator.Config {
	return coordinator.Config{
		Groups:               []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: block}},
		HashBlockTokens:      block,
		SchedulerBlockTokens: block,
	}
}

func mustNew(t testing.TB, cfg coordinator.Config) *coordinator.Coordinator {
	t.Helper()
	co, err := coordinator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return co
}
