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
	k.put(7, true, 100, 200)
	k.put(8, false, 100, 150)
	for _, c := range []struct {
		digest      uint64
		now         int64
		present, ok bool
	}{
		{7, 100, true, true},
		{7, 199, true, true},
		{7, 200, false, false},
		{8, 149, false, true},
		{8, 150, false, false},
		{9, 100, false, false},
	} {
		if present, ok := k.find(c.digest, c.now); present != c.present || ok != c.ok {
			t.Errorf("%d at %d: %v, %v", c.digest, c.now, present, ok)
		}
	}
	k.put(9, true, 0, 10_001) // longer than anything is known for: two halves
	if _, ok := k.find(9, 0); ok {
		t.Error("what seems to be known for ever is believed")
	}
	k.put(7, false, 210, 300) // the newest word counts
	if present, ok := k.find(7, 210); present || !ok {
		t.Errorf("replaced: %v, %v", present, ok)
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
		k.put(same[i], true, 0, int64(100+i))
	}
	k.put(same[lineEntries], true, 0, 500) // same[0], of the nearest end, goes
	for i, want := range []bool{false, true, true, true, true} {
		if _, ok := k.find(same[i], 1); ok != want {
			t.Errorf("entry %d: known %v", i, ok)
		}
	}
	k.put(same[lineEntries+1], true, 102, 103) // same[1] and same[2] have ended
	if _, ok := k.find(same[3], 102); !ok {
		t.Error("what has not ended went before what has")
	}
}

// TestKnownRaces: readers beside a writer see what was put, or nothing.
func TestKnownRaces(t *testing.T) {
	k := newKnown(16, 10*time.Second)
	present := func(d uint64) bool { return d%3 == 0 }
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
				if is, ok := k.find(d, 50); ok && is != present(d) {
					t.Errorf("chunk %d: present %v", d, is)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(9, 9))
	for range 200_000 {
		d := 1 + r.Uint64N(64)
		k.put(d, present(d), 50, 51+r.Int64N(1000))
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
		k.put(digests[i], true, 0, 1000)
	}
	b.ReportAllocs()
	found := 0
	for b.Loop() {
		for _, d := range digests {
			if is, _ := k.find(d, 1); is {
				found++
			}
		}
	}
	if found == 0 {
		b.Fatal("nothing was found")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/chunk")
}
