package prefixindex

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// A step of vLLM's that reports reuse: what is evicted for the request comes between
// the report and what goes on behind it. How often it was reported before, with nothing
// behind, does not matter.
func TestReuseIsFoundOutBehindEvictions(t *testing.T) {
	d := newTold(t, Options{})
	a := d.open(Origin{Instance: "a"})
	apply(a, blocks("GPU", 0, 1, 2), blocks("GPU", 0, 8, 9))
	for range 3 {
		apply(a, blocks("GPU", 0, 1, 2))
	}
	apply(a, blocks("GPU", 0, 1, 2), gone("GPU", 9), gone("GPU", 8), blocks("GPU", 2, 3))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 12))
	apply(a, gone("GPU", 3, 2))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 4))
	apply(a, blocks("GPU", 0, 1), gone("GPU", 1))
	d.expect(Query{Tokens: tokensOf(1, 2, 3)})
	// What is cleared is counted anew, and copies behind a prompt's beginning are copies.
	apply(a, &kvevents.AllBlocksCleared{}, blocks("GPU", 0, 1), blocks("GPU", 1, 2), blocks("GPU", 1, 2), gone("GPU", 2))
	d.expect(Query{Tokens: tokensOf(1, 2)}, onGPU("a", 8))
}

// A window's report names blocks that the window never had, before it is found out that
// there are reports and behind; what it computes it has.
func TestAWindowsReport(t *testing.T) {
	for name, reported := range map[string]bool{"as registered": true, "found out": false} {
		t.Run(name, func(t *testing.T) {
			d := newTold(t, Options{})
			a := d.open(Origin{Instance: "a", ReusesReported: reported})
			inWindow := func(e *kvevents.BlockStored) *kvevents.BlockStored { return ofKind(1, "sliding_window", 4, e) }
			apply(a, ofGroup(0, blocks("GPU", 0, 1, 2, 3)), inWindow(leaves(blocks("GPU", 0, 1, 2, 3), 3)))
			if reported {
				d.expect(Query{Tokens: tokensOf(1, 2, 3)}, onGPU("a", 12))
			}
			for next := kvevents.Hash(4); next < 7; next++ {
				apply(a,
					ofGroup(0, blocks("GPU", 0, 1, 2, 3)), inWindow(blocks("GPU", 0, 1, 2, 3)), goneOf(0, 99),
					ofGroup(0, blocks("GPU", 3, next)), inWindow(blocks("GPU", 3, next)))
				d.expect(Query{Tokens: tokensOf(1, 2, 3, next)}, onGPU("a", 16))
				d.expect(Query{Tokens: tokensOf(1, 2)})
			}
			apply(a, ofGroup(0, blocks("GPU", 0, 50, 51)), inWindow(blocks("GPU", 0, 50, 51)))
			d.expect(Query{Tokens: tokensOf(50, 51)}, onGPU("a", 8))
			d.expect(Query{Tokens: tokensOf(50)}, onGPU("a", 4))
			apply(a, goneOf(1, 51), goneOf(0, 51))
			d.expect(Query{Tokens: tokensOf(50, 51)}, onGPU("a", 4))
		})
	}
}
