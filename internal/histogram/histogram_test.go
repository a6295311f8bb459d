package histogram

import (
	"math"
	"sync"
	"testing"
	"time"
)

// Every duration is in the one native bucket whose bounds enclose it.
func TestNativeBuckets(t *testing.T) {
	bound := func(i int) float64 { return math.Exp2(float64(FirstIndex+i) / perOctave) }
	for d := time.Microsecond; d < 2*time.Minute; d = d*9/8 + 1 {
		i := nativeBucket(d)
		if s := d.Seconds(); s > bound(i)*(1+1e-12) || i > 0 && s <= bound(i-1)*(1-1e-12) {
			t.Errorf("%s is in bucket %d, of %g to %g s", d, i, bound(i-1), bound(i))
		}
	}
	for d, want := range map[time.Duration]int{0: 0, 1: 0, 500 * time.Nanosecond: 0, time.Hour: nativeBuckets - 1, math.MaxInt64: nativeBuckets - 1} {
		if got := nativeBucket(d); got != want {
			t.Errorf("%s is in bucket %d, want %d", d, got, want)
		}
	}
	// Exact powers of two end their bucket.
	if got := FirstIndex + nativeBucket(500*time.Millisecond); got != -perOctave {
		t.Errorf("0.5 s has native index %d, want %d", got, -perOctave)
	}
}

func TestClassicBuckets(t *testing.T) {
	all := Bounds()
	for i, b := range all {
		if i > 0 && b <= all[i-1] {
			t.Errorf("bound %d is %s after %s", i, b, all[i-1])
		}
		if got := classicBucket(b); got != i {
			t.Errorf("%s is in bucket %d, want %d: a bound is inclusive", b, got, i)
		}
		if got := classicBucket(b + 1); got != i+1 {
			t.Errorf("%s is in bucket %d, want %d", b+1, got, i+1)
		}
	}
}

func TestSnapshot(t *testing.T) {
	var h Histogram
	var wg sync.WaitGroup
	const each = 1000
	for range 4 {
		wg.Go(func() {
			for i := range each {
				h.Observe(time.Duration(i) * time.Microsecond)
			}
			h.Observe(-time.Second)
		})
	}
	for range 100 { // while others count, the buckets add up to the total
		s := h.Snapshot()
		if n := sum(s.Native[:]); n != s.Count { // a server refuses a histogram that does not add up
			t.Fatalf("%d in native buckets, %d in all", n, s.Count)
		}
	}
	wg.Wait()
	s := h.Snapshot()
	if want := uint64(4 * (each + 1)); s.Count != want || sum(s.Native[:]) != want || s.Sum != 4*each*(each-1)/2*time.Microsecond {
		t.Errorf("counted %d, %d native, sum %s", s.Count, sum(s.Native[:]), s.Sum)
	}
	twice := s
	twice.Add(&s)
	if twice.Count != 2*s.Count || twice.Sum != 2*s.Sum || sum(twice.Native[:]) != 2*s.Count || sum(twice.Classic[:]) != 2*s.Count {
		t.Errorf("added to itself: %d, %s", twice.Count, twice.Sum)
	}
}

func sum(buckets []uint64) (n uint64) {
	for _, b := range buckets {
		n += b
	}
	return n
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	b.ReportAllocs()
	for b.Loop() {
		h.Observe(137 * time.Microsecond)
	}
}
