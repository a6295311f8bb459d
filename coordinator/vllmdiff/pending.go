package vllmdiff

import (
	"fmt"
	"math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// learner is a store that knows only part of the truth at first.
type learner struct {
	truth coordinator.ExistsFunc
	known map[[2]int]kv.Existence
	// first is the answer about a chunk that was not asked for before; Present
	// stands for the truth.
	first func() kv.Existence
	// loads: something may be loading.
	loads bool
}

func newLearner(truth coordinator.ExistsFunc, rng *rand.Rand) *learner {
	unknown, loading := rng.IntN(101), max(0, rng.IntN(40)-20)
	return &learner{truth: truth, known: map[[2]int]kv.Existence{}, loads: loading > 0, first: func() kv.Existence {
		switch p := rng.IntN(100); {
		case p < unknown:
			return kv.Unknown
		case p < unknown+loading:
			return kv.Loading
		}
		return kv.Present
	}}
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

// careful takes what is not known for absent.
func (l *learner) careful(group, hashIndex int) kv.Existence {
	if l.exists(group, hashIndex) == kv.Present {
		return kv.Present
	}
	return kv.Absent
}

// learn asks for what is wanted and lets what loads arrive.
func (l *learner) learn(asks []coordinator.Ask) {
	l.first = func() kv.Existence { return kv.Present }
	for _, ask := range asks {
		for index := range ask.Each {
			if l.exists(ask.Group, index) == kv.Unknown {
				l.known[[2]int{ask.Group, index}] = l.truth(ask.Group, index)
			}
		}
		for range ask.Each {
			break // whoever leaves early is not called again
		}
	}
	for key, answer := range l.known {
		if answer == kv.Loading {
			l.known[key] = l.truth(key[0], key[1])
		}
	}
}

// outcome is the part of an answer that resuming is about.
type outcome struct {
	tokens  int
	pending bool
	asks    []coordinator.Ask
}

// resume repeats a question until nothing is pending. The answer on the way is
// the one that takes what is pending for absent, the last one is want. One round
// trip is enough where all that is pending is unknown, two where something loads
// besides.
func resume(l *learner, want int, ask func(coordinator.ExistsFunc) (outcome, error)) (resumed bool, err error) {
	got, err := ask(l.exists)
	if err != nil {
		return false, err
	}
	if got.asks != nil && !got.pending {
		return false, fmt.Errorf("asks without being pending: %+v", got)
	}
	careful, err := ask(l.careful)
	if err != nil || careful.tokens != got.tokens || careful.pending {
		return false, fmt.Errorf("pending hit %d, careful hit %+v: %w", got.tokens, careful, err)
	}
	rounds := 0
	for ; got.pending && rounds < 4; rounds++ {
		l.learn(got.asks)
		if got, err = ask(l.exists); err != nil {
			return false, err
		}
	}
	if got.pending || got.tokens != want {
		return false, fmt.Errorf("resumed %+v, want %d", got, want)
	}
	if rounds > 1 && !l.loads || rounds > 2 {
		return false, fmt.Errorf("%d round trips", rounds)
	}
	return rounds > 0, nil
}

func resumeFind(c *coordcases.Case, co *coordinator.Coordinator, want int, rng *rand.Rand) (bool, error) {
	return resume(newLearner(c.StoreFunc(), rng), want, func(exists coordinator.ExistsFunc) (outcome, error) {
		hit, err := co.HitLength(c.N, c.M, c.ApplyEagle, exists)
		return outcome{hit.Tokens, hit.Pending, hit.Asks}, err
	})
}

func resumeLookup(c *coordcases.Case, co *coordinator.Coordinator, want int, rng *rand.Rand) (bool, error) {
	l := newLearner(c.StoreFunc(), rng)
	var last coordinator.Lookup
	resumed, err := resume(l, want, func(exists coordinator.ExistsFunc) (outcome, error) {
		lookup, err := co.Lookup(c.Tokens, c.N, exists)
		last = lookup
		return outcome{lookup.HitTokens, lookup.Pending, lookup.Asks}, err
	})
	if err != nil || last.HitTokens == 0 {
		return resumed, err
	}
	// A tail may be another than the exact one, where that was not known; a load
	// must find it all the same.
	tails := make([][2]int, len(last.Tails))
	for i, tail := range last.Tails {
		tails[i] = [2]int{tail.Group, tail.Tokens}
	}
	if err := (&Case{Case: *c}).Loadable(last.HitTokens, tails); err != nil {
		return resumed, fmt.Errorf("resumed lookup: %w", err)
	}
	return resumed, nil
}
