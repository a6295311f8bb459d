package histogram

import (
	"math"
	"sort"
	"sync/atomic"
	"time"
)

const (
	// Schema is the native histogram's resolution: 2^Schema buckets for each
	// power of two.
	Schema = 3
	// perOctave is 2^Schema.
	perOctave = 1 << Schema

	// The native buckets reach from 2^minExponent seconds (under a microsecond)
	// to 2^maxExponent (over a minute); what is beyond counts in the outermost.
	minExponent = -20
	maxExponent = 7

	// FirstIndex is the native index of Snapshot.Native[0]: the bucket with index
	// i ends at 2^(i/perOctave) seconds.
	FirstIndex    = minExponent*perOctave + 1
	nativeBuckets = (maxExponent - minExponent) * perOctave
)

// bounds are the upper bounds of the classic buckets; never written.
var bounds = [...]time.Duration{
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// fractions are the native bounds within one octave, of the fraction that
// math.Frexp returns: 0.5 * 2^(i/perOctave).
var fractions = func() (f [perOctave]float64) {
	for i := range f {
		f[i] = 0.5 * math.Exp2(float64(i)/perOctave)
	}
	return f
}()

// Histogram counts durations. The zero value is ready; it must not be copied.
type Histogram struct {
	classic [len(bounds) + 1]atomic.Uint64 // the last one: beyond all bounds
	native  [nativeBuckets]atomic.Uint64
	// sumNanos is never negative: Observe takes nothing below 0.
	sumNanos atomic.Uint64
}

// Observe counts a duration; one below 0 counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	h.native[nativeBucket(d)].Add(1)
	h.sumNanos.Add(uint64(d))
	h.classic[classicBucket(d)].Add(1)
}

func classicBucket(d time.Duration) int {
	for i, bound := range bounds {
		if d <= bound {
			return i
		}
	}
	return len(bounds)
}

// nativeBucket returns the index in Snapshot.Native.
func nativeBucket(d time.Duration) int {
	if d == 0 {
		return 0
	}
	fraction, exponent := math.Frexp(d.Seconds())
	index := sort.SearchFloat64s(fractions[:], fraction) + (exponent-1)*perOctave
	return min(max(index-FirstIndex, 0), nativeBuckets-1)
}

// Snapshot is what a histogram held at one moment.
type Snapshot struct {
	// Count is the number of observations: the sum of the classic buckets.
	Count uint64
	Sum   time.Duration
	// Classic counts by upper bound, not cumulated, in the order of Bounds; the
	// last one has no bound.
	Classic [len(bounds) + 1]uint64
	// Native[i] counts what is above 2^((FirstIndex+i-1)/8) seconds, and at most
	// 2^((FirstIndex+i)/8).
	Native [nativeBuckets]uint64
}

// Bounds returns the classic bounds, all but the last one's, which has none.
func Bounds() []time.Duration { return append([]time.Duration(nil), bounds[:]...) }

// Snapshot returns what was counted.
func (h *Histogram) Snapshot() Snapshot {
	var s Snapshot
	for i := range h.classic { // first, since Observe counts there last
		s.Classic[i] = h.classic[i].Load()
		s.Count += s.Classic[i]
	}
	s.Sum = time.Duration(h.sumNanos.Load())
	left := s.Count
	for i := range h.native {
		s.Native[i] = min(h.native[i].Load(), left)
		left -= s.Native[i]
	}
	return s
}

// Add adds another snapshot to this one.
func (s *Snapshot) Add(o *Snapshot) {
	s.Count += o.Count
	s.Sum += o.Sum
	for i := range s.Classic {
		s.Classic[i] += o.Classic[i]
	}
	for i := range s.Native {
		s.Native[i] += o.Native[i]
	}
}
