package cluster

import (
	"slices"
	"time"
)

// Slowest is the papers' time between tokens: the mean of the longest tenth of a
// request's gaps, of at least one; and the mean of all. The gaps are reordered.
func Slowest(gaps []time.Duration) (slowest, mean time.Duration) {
	if len(gaps) == 0 {
		return 0, 0
	}
	slices.Sort(gaps)
	var sum, top time.Duration
	tenth := (len(gaps) + 9) / 10
	for i, g := range gaps {
		sum += g
		if i >= len(gaps)-tenth {
			top += g
		}
	}
	return top / time.Duration(tenth), sum / time.Duration(len(gaps))
}
