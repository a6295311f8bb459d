package cache

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// TestOwnPolicyBeatsLRU: at least LRU's hits at the capacities that the oracle
// has, a tenth more at 5,000 and 10,000 blocks of the conversation trace, and
// over a sweep never noticeably fewer: of the conversation trace none, of the
// synthetic one, whose few thousand requests leave little to learn from, no more
// than a hundredth or so.
func TestOwnPolicyBeatsLRU(t *testing.T) {
	_, traces := realTraces(t)
	for name, tr := range traces {
		at := map[int]float64{}
		least := map[string]float64{"conversation": 0.9999}[name]
		for c := 200.0; c < 100_000; c *= 1.3 {
			at[int(c)] = max(least, 0.985)
		}
		for _, capacity := range []int{500, 1500, 1700, 1950, 2000, 2200, 2500, 3000, 4000, 7000, 15000, 20000, 25000} {
			at[capacity] = 0.997
		}
		for _, capacity := range []int{33000, 35000, 38000, 60000} {
			at[capacity] = 1
		}
		for _, capacity := range []int{20, 50, 200, 1000, 5000, 10000, 30000, 50000, 100000} {
			at[capacity] = 1
		}
		if name == "conversation" {
			at[5000], at[10000] = 1.1, 1.1
		}
		for capacity, least := range at {
			for _, order := range []Order{Forward, Reverse} {
				base, own := hitsOf(t, tr, evict.NameLRU, capacity, order), hitsOf(t, tr, evict.NameHazard, capacity, order)
				if float64(own) < least*float64(base) {
					t.Errorf("%s/%s at %d blocks: %d hit, LRU %d (%.4f)", name, order, capacity, own, base, float64(own)/float64(base))
				}
			}
		}
	}
}

func hitsOf(t *testing.T, tr *Trace, policy string, capacity int, order Order) int {
	t.Helper()
	p, err := evict.New(policy, min(capacity, tr.Unique()))
	if err != nil {
		t.Fatal(err)
	}
	result, err := Replay(t.Context(), tr, p, capacity, order, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result.HitBlocks
}

// made is a trace that a test makes: chains of n blocks, asked for in an order.
func made(t *testing.T, chains []int, n func(chain int) int) *Trace {
	t.Helper()
	var text strings.Builder
	for _, c := range chains {
		ids := make([]string, n(c))
		for i := range ids {
			ids[i] = fmt.Sprint(c*1000 + i)
		}
		fmt.Fprintf(&text, `{"timestamp":0,"input_length":%d,"output_length":0,"hash_ids":[%s]}`+"\n", len(ids)*512, strings.Join(ids, ","))
	}
	tr, err := Read(strings.NewReader(text.String()), "made")
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestOwnPolicyIsRobust: workloads that upset policies which learn. What is
// learned from one phase must not be held against the next.
func TestOwnPolicyIsRobust(t *testing.T) {
	ten := func(int) int { return 10 }
	random := rand.New(rand.NewPCG(1, 2))
	scan := make([]int, 3000) // nothing comes back
	loop := make([]int, 6000) // a fifth more than fits, round and round
	shift := make([]int, 9000)
	burst := make([]int, 6000) // a working set with scans in between
	for i := range scan {
		scan[i] = i
	}
	for i := range loop {
		loop[i] = i % 240
	}
	for i := range shift { // a set that fits, another one every 1500 requests
		shift[i] = i/1500*150 + random.IntN(150)
	}
	for i := range burst {
		if burst[i] = random.IntN(150); i/200%2 == 1 {
			burst[i] = 1000 + i
		}
	}
	const capacity = 2000 // 200 chains
	for _, test := range []struct {
		name   string
		chains []int
		// least hits, as a part of LRU's
		least float64
	}{
		{"scan", scan, 1}, {"loop", loop, 1}, {"shifting sets", shift, 0.97}, {"set and scans", burst, 1},
	} {
		tr := made(t, test.chains, ten)
		for _, order := range []Order{Forward, Reverse} {
			lru, own := hitsOf(t, tr, evict.NameLRU, capacity, order), hitsOf(t, tr, evict.NameHazard, capacity, order)
			best, err := Best(t.Context(), tr, capacity, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s/%s: own %d, LRU %d, MIN %d of %d", test.name, order, own, lru, best.HitBlocks, best.Blocks)
			if float64(own) < test.least*float64(lru) || own > best.HitBlocks {
				t.Errorf("%s/%s: own %d, LRU %d, MIN %d", test.name, order, own, lru, best.HitBlocks)
			}
		}
	}
}
