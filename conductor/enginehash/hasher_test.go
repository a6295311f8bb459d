package enginehash

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Hashes are those that vLLM's own functions make.
func TestAgainstVLLM(t *testing.T) {
	data, err := os.ReadFile("testdata/hashes.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Cases []struct {
			Algorithm, Seed, Salt string
			Block                 int
			Tokens                []uint32
			Hashes                []string
		}
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	algorithms := map[string]int{}
	for i, c := range recorded.Cases {
		algorithms[c.Algorithm]++
		h, err := New(contract.HashProfile{Algorithm: c.Algorithm, Seed: c.Seed})
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.Prompt(c.Tokens, c.Block, c.Salt)
		if err != nil || len(got) != len(c.Hashes) {
			t.Fatalf("%d hashes, %v", len(got), err)
		}
		var before []byte
		for j, want := range c.Hashes {
			salt := c.Salt
			if j > 0 {
				salt = ""
			}
			if before, err = h.Next(before, c.Tokens[j*c.Block:(j+1)*c.Block], salt); err != nil || hex.EncodeToString(before) != want || got[j] != kvevents.HashOf(before) {
				t.Fatalf("case %d, %s, seed %q, salt of %d bytes, block %d: %x, not %s", i, c.Algorithm, c.Seed, len(c.Salt), j, before, want)
			}
		}
	}
	for _, algorithm := range Algorithms() {
		if algorithms[algorithm] < 40 {
			t.Errorf("%d cases of %s", algorithms[algorithm], algorithm)
		}
	}
}

// What an engine without PYTHONHASHSEED published for tokens 1 to 8.
func TestPublished(t *testing.T) {
	for algorithm, want := range map[string][2]kvevents.Hash{
		SHA256:     {1882140585328457242, 15284023028817948126},
		SHA256CBOR: {9561501211280363793, 15292913576410714033},
	} {
		h, err := New(contract.HashProfile{Algorithm: algorithm})
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.Prompt([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 4, "")
		if err != nil || [2]kvevents.Hash(got) != want {
			t.Errorf("%s: %v, %v", algorithm, got, err)
		}
	}
}

func TestWhatCantBeHashed(t *testing.T) {
	for profile, want := range map[contract.HashProfile]error{
		{}: ErrAlgorithm, {Algorithm: "md5"}: ErrAlgorithm, {Algorithm: XXHash}: ErrRandom, {Algorithm: XXHashCBOR}: ErrRandom,
		{Algorithm: SHA256, Seed: string(make([]byte, maxSaltBytes+1))}: ErrTooLong,
	} {
		if _, err := New(profile); !errors.Is(err, want) {
			t.Errorf("%.40v: %v", profile, err)
		}
	}
	h, err := New(contract.HashProfile{Algorithm: SHA256})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Next(nil, make([]uint32, MaxBlockTokens+1), ""); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	if _, err := h.Next(nil, nil, string(make([]byte, maxSaltBytes+1))); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	if _, err := h.Prompt(nil, 0, ""); err == nil {
		t.Error("blocks of no tokens")
	}
}
