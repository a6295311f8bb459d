package level

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func TestKnown(t *testing.T) {
	k := newKnown(64, 10*time.Second)
	if _, ok := k.find(7, 0); ok {
		t.Error("an empty memory knows something")
	}
	k.put(7, present, 100, 200)
	k.put(8, concluded, 100, 150)
	for _, c := range []struct {
		digest uint64
		now    int64
		said   verdict
		ok     bool
	}{
		{7, 100, present, true},
		{7, 199, present, true},
		{7, 200, absent, false},
		{8, 149, concluded, true},
		{8, 150, absent, false},
		{9, 100, absent, false},
	} {
		if said, ok := k.find(c.digest, c.now); said != c.said || ok != c.ok {
			t.Errorf("%d at %d: %v, %v", c.digest, c.now, said, ok)
		}
	}
	k.put(9, present, 0, 10_001) // longer than anything is known for: two halves
	if _, ok := k.find(9, 0); ok {
		t.Error("what seems to be known for ever is believed")
	}
	k.put(7, absent, 210, 300) // the newest word counts
	if said, ok := k.find(7, 210); said != absent || !ok {
		t.Errorf("replaced: %v, %v", said, ok)
	}
}

// TestKnownKeepsTheYoungest: a line that is full gives up what ends first, and
// what has ended before that.
func TestKnownKeepsTheYoungest(t *testing.T) {
	k := newKnown(8, 10*time.Second) // two lines
	var same []uint64
	for d := uint64(1); len(same) < lineEntries+2; d++ {
		if k.lineOf(d) == k.lineOf(1) {
			same = append(same, d)
		}
	}
	for i := range lineEntries {
		k.put(same[i], present, 0, int64(100+i))
	}
	k.put(same[lineEntries], present, 0, 500) // same[0], of the nearest end, goes
	for i, want := range []bool{false, true, true, true, true} {
		if _, ok := k.find(same[i], 1); ok != want {
			t.Errorf("entry %d: known %v", i, ok)
		}
	}
	k.put(same[lineEntries+1], present, 102, 103) // same[1] and same[2] have ended
	if _, ok := k.find(same[3], 102); !ok {
		t.Error("what has not ended went before what has")
	}
}

// TestKnownRaces: readers beside a writer see what was put, or nothing.
func TestKnownRaces(t *testing.T) {
	k := newKnown(16, 10*time.Second)
	of := func(d uint64) verdict { return verdict(d % 3) }
	stop := make(chan struct{})
	var all sync.WaitGroup
	for seed := range uint64(2) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				d := 1 + r.Uint64N(64)
				if is, ok := k.find(d, 50); ok && is != of(d) {
					t.Errorf("chunk %d: %v", d, is)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(9, 9))
	for range 200_000 {
		d := 1 + r.Uint64N(64)
		k.put(d, of(d), 50, 51+r.Int64N(1000))
	}
	close(stop)
	all.Wait()
}

func BenchmarkKnown(b *testing.B) {
	const chunks = 8192
	k := newKnown(defaultKnown, 10*time.Second)
	digests := make([]uint64, chunks)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range digests {
		digests[i] = r.Uint64()
		k.put(digests[i], present, 0, 1000)
	}
	b.ReportAllocs()
	found := 0
	for b.Loop() {
		for _, d := range digests {
			if said, _ := k.find(d, 1); said == present {
				found++
			}
		}
	}
	if found == 0 {
		b.Fatal("nothing was found")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/chunk")
}
