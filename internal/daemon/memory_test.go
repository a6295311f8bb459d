package daemon

import "testing"

// TestGarbageOfALargeHeap: small heaps have room for garbage, large ones a small part of
// what they hold.
func TestGarbageOfALargeHeap(t *testing.T) {
	for _, c := range []struct {
		live    uint64
		percent int
	}{
		{0, 50}, {1 << 20, 50}, {64 << 20, 50}, {128 << 20, 25}, {256 << 20, 15}, {100 << 30, 15},
	} {
		if got := gcPercentOf(c.live); got != c.percent {
			t.Errorf("%d MiB: %d %%, want %d", c.live>>20, got, c.percent)
		}
	}
}
