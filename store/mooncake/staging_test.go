package mooncake

import (
	"math/rand/v2"
	"testing"
)

// TestStaging compares the ranges with a map of pages, and what is free with its
// invariant.
func TestStaging(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const pages = 64
	s := newStaging(Range{100, pages*stagingAlign + 5000})
	if s.bytes != pages*stagingAlign {
		t.Fatalf("%d bytes", s.bytes)
	}
	var taken [pages + 1]bool // by page; the first begins before the piece
	type span struct{ offset, n uint64 }
	var held []span
	mark := func(r span, to bool) {
		for page := r.offset / stagingAlign; page*stagingAlign < r.offset+r.n; page++ {
			if taken[page] == to {
				t.Fatalf("page %d of %+v is twice %v", page, r, to)
			}
			taken[page] = to
		}
	}
	for range 20_000 {
		if random.IntN(2) == 0 && len(held) > 0 {
			i := random.IntN(len(held))
			mark(held[i], false)
			s.give(held[i].offset, held[i].n)
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		} else if n := 1 + random.Uint64N(6*stagingAlign); true {
			offset, ok := s.take(n)
			if longest := longestFree(taken[1:]); ok != (longest >= rounded(n)) {
				t.Fatalf("%d bytes: %v, the longest free span has %d", n, ok, longest)
			}
			if ok {
				held = append(held, span{offset, n})
				mark(held[len(held)-1], true)
			}
		}
		var free uint64
		for i, r := range s.free {
			free += r.Bytes
			if i > 0 && s.free[i-1].Offset+s.free[i-1].Bytes >= r.Offset {
				t.Fatalf("spans %+v and %+v touch", s.free[i-1], r)
			}
		}
		if free != s.freeBytes {
			t.Fatalf("%d bytes free, %d counted", free, s.freeBytes)
		}
	}
	if _, ok := s.take(0); ok {
		t.Error("no bytes have a place")
	}
	if _, ok := s.take(^uint64(0)); ok {
		t.Error("all bytes have a place")
	}
}

// longestFree returns the bytes of the longest run of free pages.
func longestFree(taken []bool) (longest uint64) {
	run := uint64(0)
	for _, t := range taken {
		if run += stagingAlign; t {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// TestStagingTwice: giving back what is free is a bug, and said to be.
func TestStagingTwice(t *testing.T) {
	s := newStaging(Range{0, 1 << 20})
	offset, _ := s.take(5000)
	s.give(offset, 5000)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	s.give(offset, 5000)
}
