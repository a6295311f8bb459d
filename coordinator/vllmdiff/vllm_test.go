package vllmdiff_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
)

// defaultCases is how many cases a plain test run compares; the nightly run sets
// MOONCAKE_SIDECAR_DIFF_CASES.
const defaultCases = 20_000

func envUint(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestAgainstVLLM compares random cases with the installed vLLM: hit lengths,
// masks, whole lookups over a stub store, and the keys they ask for.
func TestAgainstVLLM(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no interpreter with vLLM")
	}
	n := int(envUint(t, "MOONCAKE_SIDECAR_DIFF_CASES", defaultCases))
	// A change is judged by cases that were equal before it; more than these are new ones.
	drawn := uint64(1)
	if n > defaultCases {
		drawn = uint64(time.Now().UnixNano())
	}
	seed := envUint(t, "MOONCAKE_SIDECAR_SEED", drawn)
	t.Logf("%d cases, MOONCAKE_SIDECAR_SEED=%d", n, seed)
	vllm, err := vllmdiff.StartVLLM(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := vllm.Close(); err != nil {
			t.Error(err)
		}
	}()
	sent := make(chan *vllmdiff.Case, 4096)
	failed := make(chan error, 1)
	generator := vllmdiff.NewGenerator(seed)
	go func() {
		defer close(sent)
		for i := range n {
			c := generator.Next()
			send := vllm.Send
			if i == n-1 {
				send = vllm.SendLast
			}
			if err := send(c); err != nil {
				failed <- err
				return
			}
			select {
			case sent <- c:
			case <-t.Context().Done():
			}
		}
		failed <- nil
	}()
	rng := rand.New(rand.NewPCG(seed, 1))
	resumed := 0
	counts := map[vllmdiff.Outcome]int{}
	var different *vllmdiff.Case
	for c := range sent {
		theirs, err := vllm.Receive()
		if err != nil {
			t.Fatal(err)
		}
		outcome, err := vllmdiff.Compare(c, theirs)
		if err != nil && different == nil {
			different = c
			t.Errorf("case %s\n%v", encode(t, c), err)
		}
		counts[outcome]++
		more, err := vllmdiff.CheckOwn(&c.Case, rng)
		if err != nil {
			t.Errorf("case %s\n%v", encode(t, c), err)
		}
		if more {
			resumed++
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if different != nil {
		reduced := vllmdiff.Reduce(different, 2000, func(c *vllmdiff.Case) bool {
			theirs, err := vllm.Ask(c)
			if err != nil {
				return false
			}
			_, err = vllmdiff.Compare(c, theirs)
			return err != nil
		})
		theirs, err := vllm.Ask(reduced)
		if err != nil {
			t.Fatal(err)
		}
		_, err = vllmdiff.Compare(reduced, theirs)
		t.Fatalf("reduced: %s\n%v", encode(t, reduced), err)
	}
	t.Logf("equal %d, refused where vLLM asserts %d, safe where vLLM's lookup raises %d; hits strictly inside %d, answers in more than one round %d",
		counts[vllmdiff.Equal], counts[vllmdiff.Refused], counts[vllmdiff.Safe], generator.Mids(), resumed)
	if 2*generator.Mids() < n {
		t.Errorf("only %d of %d cases have a hit strictly between 0 and the length", generator.Mids(), n)
	}
	if 20*(counts[vllmdiff.Refused]+counts[vllmdiff.Safe]) > n {
		t.Errorf("vLLM answers too few of the cases: %v", counts)
	}
}

func encode(t *testing.T, c *vllmdiff.Case) string {
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
