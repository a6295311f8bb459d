package vllmdiff_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// difference is a question that vLLM 0.32.0 does not answer, or answers with a
// hit that can't be loaded.
type difference struct {
	groups   []coordcases.Group
	block    int
	eagle    bool
	tokens   int
	hashes   int
	stored   [][2]int
	theirs   string // what vLLM raises; empty: a hit that can't be loaded
	ours     int    // hit
	unserved bool   // we refuse
}

func stored(group int, indices ...int) (all [][2]int) {
	for _, i := range indices {
		all = append(all, [2]int{group, i})
	}
	return all
}

var differences = map[string]difference{
	"a hit ends an attention chunk whose last block is not stored": {
		groups: []coordcases.Group{{Kind: "full", B: 16}, {Kind: "chunked", B: 16, W: 64}}, block: 16, tokens: 140, hashes: 8,
		stored: stored(0, 0, 1, 2, 3, 4, 5, 6, 7), theirs: "AssertionError", ours: 128,
	},
	"attention chunks that share a block that is not stored": {
		groups: []coordcases.Group{{Kind: "chunked", B: 4, W: 15}}, block: 4, tokens: 34, hashes: 8, stored: stored(0, 0),
		theirs: "AssertionError", ours: 0,
	},
	"attention chunks that share a block, before one that is stored": {
		groups: []coordcases.Group{{Kind: "chunked", B: 4, W: 15}}, block: 4, tokens: 34, hashes: 8, stored: stored(0, 6),
		ours: 0,
	},
	"a window of one token with EAGLE": {
		groups: []coordcases.Group{{Kind: "swa", B: 4, W: 1}}, block: 4, eagle: true, tokens: 33, hashes: 8, stored: stored(0, 7),
		theirs: "AssertionError", ours: 0,
	},
	"fewer hashes than tokens": {
		groups: []coordcases.Group{{Kind: "swa", B: 16, W: 32}}, block: 16, tokens: 1600, hashes: 4, stored: stored(0, 0, 1, 2, 3),
		theirs: "IndexError", ours: 64,
	},
	"chunked local attention with EAGLE": {
		groups: []coordcases.Group{{Kind: "chunked", B: 16, W: 64}}, block: 16, eagle: true, tokens: 140, hashes: 8,
		stored: stored(0, 0, 1, 2, 3), theirs: "AssertionError", unserved: true,
	},
	"chunked local attention with blocks other than the alignment": {
		groups: []coordcases.Group{{Kind: "full", B: 32}, {Kind: "chunked", B: 16, W: 64}}, block: 32, tokens: 140, hashes: 8,
		stored: stored(0, 1, 3, 5, 7), theirs: "AssertionError", unserved: true,
	},
}

// TestDifferences asks both sides the questions of the table in
// docs/coordinator.md.
func TestDifferences(t *testing.T) {
	vllm := startVLLM(t)
	for name, d := range differences {
		t.Run(name, func(t *testing.T) {
			c := &vllmdiff.Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1, Model: "m", Layout: "LBHNC", Case: coordcases.Case{
				Op: coordcases.OpLookup, Groups: d.groups, L: d.block, H: min(d.block, d.groups[len(d.groups)-1].B), UseEagle: d.eagle,
				N: d.hashes, Tokens: d.tokens, Exists: &d.stored,
			}}
			text, err := vllm.Ask(c)
			if err != nil {
				t.Fatal(err)
			}
			var theirs struct {
				Raised string
				Hit    int
				Tails  [][2]int
			}
			if err := json.Unmarshal([]byte(text), &theirs); err != nil {
				t.Fatal(err)
			}
			if theirs.Raised != d.theirs {
				t.Errorf("vLLM does not raise %q any more: %s", d.theirs, text)
			}
			if d.theirs == "" && (theirs.Hit == 0 || c.Loadable(theirs.Hit, theirs.Tails) == nil) {
				t.Errorf("vLLM's answer can be loaded: %s", text)
			}
			ours, err := c.Answer()
			if d.unserved != errors.Is(err, coordinator.ErrUnservable) || !d.unserved && (err != nil || ours.Hit != d.ours) {
				t.Errorf("we say %+v, %v", ours, err)
			}
			// Random cases have no fewer hashes than tokens: the comparison knows
			// nothing of that.
			if _, err := vllmdiff.Compare(c, text); err != nil && d.theirs != "IndexError" {
				t.Errorf("the comparison takes it for a fault: %v", err)
			}
		})
	}
}

// TestKeysCollide: in-tree keys of two checkpoints with one base name are equal;
// our namespaces of them are not.
func TestKeysCollide(t *testing.T) {
	vllm := startVLLM(t)
	var keys []string
	digests := map[[32]byte]bool{}
	for _, model := range []string{"/models/run-a/checkpoint-500", "/models/run-b/checkpoint-500"} {
		c := &vllmdiff.Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1, Model: model, Layout: "LBHNC", Case: coordcases.Case{
			Op: coordcases.OpLookup, Groups: []coordcases.Group{{Kind: "full", B: 16}}, L: 16, H: 16, N: 1, Tokens: 20,
		}}
		text, err := vllm.Ask(c)
		if err != nil {
			t.Fatal(err)
		}
		var theirs struct{ Own [][]string }
		if err := json.Unmarshal([]byte(text), &theirs); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, theirs.Own[0][0])
		spec := kv.NamespaceSpec{Model: model}
		digests[spec.Digest()] = true
	}
	if keys[0] != keys[1] || len(digests) != 2 {
		t.Errorf("keys %v, %d namespaces", keys, len(digests))
	}
}

func startVLLM(t *testing.T) *vllmdiff.VLLM {
	t.Helper()
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no interpreter with vLLM")
	}
	vllm, err := vllmdiff.StartVLLM(context.Background(), python) // outlives the test's context: it is closed in order
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vllm.Close(); err != nil {
			t.Error(err)
		}
	})
	return vllm
}
