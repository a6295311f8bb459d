package prefixindex

import (
	"slices"
	"testing"
)

// Lists of any length are alike if all that differs are counts, at every place.
func TestAlike(t *testing.T) {
	for n := range 11 {
		var a []holding
		for lane := range uint32(n) { //nolint:gosec // a few
			a = append(a, holdingOf(lane, Tier(lane%tiers))|1)
		}
		if !alike(a, a) || alike(a, append(slices.Clone(a), 1)) {
			t.Errorf("%d holders are not like themselves, or like one more", n)
		}
		for i := range a {
			b := slices.Clone(a)
			if b[i]++; !alike(a, b) || !alike(b, a) {
				t.Errorf("of %d holders number %d has one copy more, and is another", n, i)
			}
			for _, other := range []holding{1 << countBits, 1 << (countBits + tierBits), 1 << 31} {
				if b[i] = a[i] ^ other; alike(a, b) || alike(b, a) {
					t.Errorf("of %d holders number %d is another, %x and not %x, and counts as the same", n, i, b[i], a[i])
				}
			}
		}
	}
}
