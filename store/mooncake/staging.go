package mooncake

import (
	"math"
	"slices"
)

// stagingAlign is what ranges begin at: a page, as network adapters like it.
const stagingAlign = 4096

// staging hands out ranges of a piece of memory. It is pure: its caller has the
// lock.
//
// INVARIANT: free is sorted, its spans neither touch nor overlap, and together
// with what was taken they are the piece.
type staging struct {
	free []Range
	next int // where the last search ended; the next begins there
	// freeBytes is the sum of free.
	freeBytes, bytes uint64
}

// newStaging hands out what is in r, from the first page that begins in it.
func newStaging(r Range) *staging {
	begin := (r.Offset + stagingAlign - 1) / stagingAlign * stagingAlign
	end := (r.Offset + r.Bytes) / stagingAlign * stagingAlign
	if end <= begin {
		return &staging{}
	}
	s := &staging{free: []Range{{begin, end - begin}}, freeBytes: end - begin}
	s.bytes = s.freeBytes
	return s
}

// rounded returns how much of the memory n bytes take.
func rounded(n uint64) uint64 { return (n + stagingAlign - 1) / stagingAlign * stagingAlign }

// take returns the place of n bytes; false: no span is as long.
//
// REQUIRES: 0 < n <= MaxInt64.
func (s *staging) take(n uint64) (offset uint64, ok bool) {
	if n == 0 || n > math.MaxInt64 {
		return 0, false
	}
	n = rounded(n)
	for i := range s.free {
		at := (s.next + i) % len(s.free)
		span := &s.free[at]
		if span.Bytes < n {
			continue
		}
		offset = span.Offset
		if span.Offset, span.Bytes = span.Offset+n, span.Bytes-n; span.Bytes == 0 {
			s.free = slices.Delete(s.free, at, at+1)
		}
		s.next = at
		s.freeBytes -= n
		return offset, true
	}
	return 0, false
}

// give takes back n bytes at offset.
//
// REQUIRES: take returned them, and they were not given back since.
func (s *staging) give(offset, n uint64) {
	n = rounded(n)
	at, _ := slices.BinarySearchFunc(s.free, offset, func(r Range, offset uint64) int {
		switch {
		case r.Offset < offset:
			return -1
		case r.Offset > offset:
			return 1
		}
		return 0
	})
	if at < len(s.free) && s.free[at].Offset < offset+n || at > 0 && s.free[at-1].Offset+s.free[at-1].Bytes > offset {
		panic("BUG: a staging range was given back that was not taken")
	}
	s.freeBytes += n
	before := at > 0 && s.free[at-1].Offset+s.free[at-1].Bytes == offset
	behind := at < len(s.free) && s.free[at].Offset == offset+n
	switch {
	case before && behind:
		s.free[at-1].Bytes += n + s.free[at].Bytes
		s.free = slices.Delete(s.free, at, at+1)
	case before:
		s.free[at-1].Bytes += n
	case behind:
		s.free[at].Offset, s.free[at].Bytes = offset, s.free[at].Bytes+n
	default:
		s.free = slices.Insert(s.free, at, Range{offset, n})
	}
}
