package level

import (
	"math"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// TestCallsGetLess: of what waits each call takes half, no call less than leastGetBytes
// of it and none more than the client passes on at once.
func TestCallsGetLess(t *testing.T) {
	const mib = 1 << 20
	waiting := make([]*fetching, 0, 1024)
	for range 62 {
		waiting = append(waiting, &fetching{bytes: 8 * mib})
	}
	for _, want := range []int{31, 15, 8, 8} {
		n, bytes := 0, getBytes(waiting, math.MaxUint64)
		for n < len(waiting) && uint64(n+1)*8*mib <= bytes {
			n++
		}
		if n != want {
			t.Errorf("of %d chunks of 8 MiB a call takes %d, want %d", len(waiting), n, want)
		}
		waiting = waiting[n:]
	}
	for range cap(waiting) {
		waiting = append(waiting, &fetching{bytes: 8 * mib})
	}
	for _, c := range []struct {
		what          string
		waiting       []*fetching
		rate, atASize uint64
	}{
		{"much, fast", waiting, 10 << 30, mooncake.MaxGetBytes},
		{"much, at 300 MiB/s", waiting, 300 * mib, 150 * mib},
		{"much, slow", waiting, 1 * mib, leastGetBytes},
		{"much, for the first time", waiting, 0, leastGetBytes},
		{"nothing", nil, 10 << 30, leastGetBytes},
	} {
		if got := getBytes(c.waiting, c.rate); got != c.atASize {
			t.Errorf("%s: a call takes %d bytes, want %d", c.what, got, c.atASize)
		}
	}
}
