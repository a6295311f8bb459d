package vllmdiff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
)

// TestGenerator: a seed gives the same cases again, of every kind, and at least
// half of them have a hit strictly between 0 and the length.
func TestGenerator(t *testing.T) {
	a, b := vllmdiff.NewGenerator(7), vllmdiff.NewGenerator(7)
	ops, kinds, namespaces := map[string]int{}, map[string]int{}, map[string]int{}
	const n = 4000
	for range n {
		c := a.Next()
		if again := b.Next(); encode(t, c) != encode(t, again) {
			t.Fatalf("%s\n%s", encode(t, c), encode(t, again))
		}
		ops[c.Op]++
		for _, g := range c.Groups {
			kinds[g.Kind]++
		}
		if c.Op == coordcases.OpLookup && c.StoreTP != 0 {
			for _, word := range []string{"tp_shared_lbhnc", "tp_shared_lbnhc", "tp_shared_mqa", "rank_local"} {
				if strings.Contains(c.Keys().Lifecycle, word) {
					namespaces[word]++
				}
			}
		}
	}
	if len(ops) != 4 || len(kinds) != 9 || len(namespaces) != 4 {
		t.Errorf("ops %v, kinds %v, namespaces %v", ops, kinds, namespaces)
	}
	if 2*a.Mids() < n {
		t.Errorf("%d of %d hits are inside", a.Mids(), n)
	}
}

// TestReduce: a fault that needs one chunk of one group is reduced to it.
func TestReduce(t *testing.T) {
	generator := vllmdiff.NewGenerator(3)
	fails := func(c *vllmdiff.Case) bool {
		return c.Exists != nil && slices.ContainsFunc(*c.Exists, func(e [2]int) bool {
			return e[1] == 2 && c.Groups[e[0]].Kind == "swa"
		})
	}
	reduced := 0
	for range 400 {
		c := generator.Next()
		if !fails(c) {
			continue
		}
		before := encode(t, c)
		r := vllmdiff.Reduce(c, 5000, fails)
		if encode(t, c) != before {
			t.Fatalf("the case was changed:\n%s\n%s", before, encode(t, c))
		}
		if !fails(r) || len(r.Groups) != 1 || len(*r.Exists) != 1 || r.N != 3 || len(r.Partial) != 0 || r.UseEagle {
			t.Fatalf("reduced to %s", encode(t, r))
		}
		reduced++
	}
	if reduced == 0 {
		t.Error("nothing to reduce")
	}
	c := generator.Next()
	if r := vllmdiff.Reduce(c, 0, func(*vllmdiff.Case) bool { return true }); r != c {
		t.Error("reduced without a budget")
	}
}

// TestCompare: what differs is told apart from what is equal.
func TestCompare(t *testing.T) {
	c := &vllmdiff.Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1, Model: "m", Layout: "LBHNC", Case: coordcases.Case{
		Op: coordcases.OpLookup, Groups: []coordcases.Group{{Kind: "full", B: 4}}, L: 4, H: 4, N: 4, Tokens: 16,
	}}
	const keys = `"prefixes":[["m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0"]],"factors":[1],` +
		`"own":[["m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@00000000"]],"lifecycle":"vllm-mooncake-store:m@00000000"`
	for name, test := range map[string]struct {
		op, theirs string
		want       vllmdiff.Outcome
		err        string
	}{
		"equal":           {"lookup", `{` + keys + `,"hit":12,"tails":[[0,12]]}`, vllmdiff.Equal, ""},
		"hit":             {"lookup", `{` + keys + `,"hit":8,"tails":[[0,8]]}`, 0, "vLLM says hit 8"},
		"tail":            {"lookup", `{` + keys + `,"hit":12,"tails":[[0,16]]}`, 0, "tails [[0 16]]"},
		"keys":            {"lookup", `{"hit":12,"tails":[[0,12]]}`, 0, "our keys"},
		"raised":          {"lookup", `{` + keys + `,"hit":12,"raised":"AssertionError"}`, vllmdiff.Safe, ""},
		"raised at other": {"lookup", `{` + keys + `,"hit":16,"raised":"AssertionError"}`, 0, "vLLM raised"},
		"masks":           {"lookup_mask", `{"masks":[[true]]}`, 0, `we say {"masks":[null]}`},
		"not json":        {"lookup", `{`, 0, "vLLM's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			c := *c
			c.Op = test.op
			got, err := vllmdiff.Compare(&c, test.theirs)
			if test.err == "" && (err != nil || got != test.want) || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	unservable := *c
	unservable.Groups = []coordcases.Group{{Kind: "chunked", B: 4, W: 4, Eagle: true}}
	if got, err := vllmdiff.Compare(&unservable, `{"raised":"AssertionError"}`); err != nil || got != vllmdiff.Refused {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := vllmdiff.Compare(&unservable, `{"hit":4,"tails":[[0,4]]}`); err == nil {
		t.Error("refused what vLLM answers")
	}
	unservable.Groups[0].Kind = "nothing"
	if _, err := vllmdiff.Compare(&unservable, `{"raised":"AssertionError"}`); err == nil {
		t.Error("an unknown kind passes")
	}
}
