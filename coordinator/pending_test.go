package coordinator_test

import (
	"math/rand/v2"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// learner is a store that knows only part of the truth at first.
type learner struct {
	truth coordinator.ExistsFunc
	known map[[2]int]kv.Existence
	first func() kv.Existence
}

func (l *learner) exists(group, hashIndex int) kv.Existence {
	key := [2]int{group, hashIndex}
	answer, ok := l.known[key]
	if !ok {
		if answer = l.first(); answer == kv.Present || answer == kv.Absent {
			answer = l.truth(group, hashIndex)
		}
		l.known[key] = answer
	}
	return answer
}

// TestLookupResumes learns what lookups ask for. One round trip is enough where
// all that is pending is unknown, two where something loads besides. The answer
// on the way is the one that treats what is pending as absent; the last is the
// exact one.
func TestLookupResumes(t *testing.T) {
	generator := vllmdiff.NewGenerator(9)
	rng := rand.New(rand.NewPCG(9, 9))
	resumed := 0
	for range 20_000 {
		c := generator.Next()
		if c.Op != coordcases.OpLookup {
			continue
		}
		co, err := coordinator.New(c.Config())
		if err != nil {
			t.Fatal(err)
		}
		want, err := co.Lookup(c.Tokens, c.N, c.StoreFunc())
		if err != nil {
			continue
		}
		unknown, loading := rng.IntN(101), max(0, rng.IntN(40)-20)
		l := &learner{truth: c.StoreFunc(), known: map[[2]int]kv.Existence{}, first: func() kv.Existence {
			switch p := rng.IntN(100); {
			case p < unknown:
				return kv.Unknown
			case p < unknown+loading:
				return kv.Loading
			}
			return kv.Present
		}}
		got, err := co.Lookup(c.Tokens, c.N, l.exists)
		if err != nil {
			t.Fatal(err)
		}
		if got.Asks != nil && !got.Pending {
			t.Fatalf("asks without being pending: %s", encode(t, c))
		}
		careful, err := co.Lookup(c.Tokens, c.N, func(group, hashIndex int) kv.Existence {
			if l.exists(group, hashIndex) == kv.Present {
				return kv.Present
			}
			return kv.Absent
		})
		if err != nil || careful.HitTokens != got.HitTokens {
			t.Fatalf("pending hit %d, careful hit %d: %s", got.HitTokens, careful.HitTokens, encode(t, c))
		}
		if got.Pending {
			resumed++
		}
		// Ask the store for all that is unknown, let what loads arrive, repeat.
		l.first = func() kv.Existence { return kv.Present }
		rounds := 0
		for ; got.Pending && rounds < 4; rounds++ {
			for _, ask := range got.Asks {
				for index := range ask.Each {
					if l.exists(ask.Group, index) == kv.Unknown {
						l.known[[2]int{ask.Group, index}] = l.truth(ask.Group, index)
					}
				}
			}
			for key, answer := range l.known {
				if answer == kv.Loading {
					l.known[key] = l.truth(key[0], key[1])
				}
			}
			if got, err = co.Lookup(c.Tokens, c.N, l.exists); err != nil {
				t.Fatal(err)
			}
		}
		if got.Pending || got.HitTokens != want.HitTokens {
			t.Fatalf("resumed %+v, exact %+v: %s", got, want, encode(t, c))
		}
		// A tail may be another than the exact one, where that was not known.
		tails := make([][2]int, len(got.Tails))
		for i, tail := range got.Tails {
			tails[i] = [2]int{tail.Group, tail.Tokens}
		}
		if err := c.Loadable(got.HitTokens, tails); err != nil && got.HitTokens > 0 {
			t.Fatalf("%v: %s", err, encode(t, c))
		}
		if rounds > 1 && loading == 0 || rounds > 2 {
			t.Fatalf("%d round trips: %s", rounds, encode(t, c))
		}
	}
	if resumed < 1000 {
		t.Errorf("only %d lookups were pending", resumed)
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
