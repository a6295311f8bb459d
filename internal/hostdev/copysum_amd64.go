package hostdev

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hasCRC: the processor has the instruction (SSE 4.2). All servers since 2008
// have.
var hasCRC = cpu.X86.HasSSE42

// maxStream bounds what is copied in one call, which the scheduler can't
// interrupt: three of them take about 10 us.
const maxStream = 32 << 10

const (
	// lineBytes is what a stream's length is a multiple of.
	lineBytes = 64
	wordBytes = 8
)

// copier copies pieces of one length.
type copier struct {
	// streams are the lengths that are copied three at a time, longest first; what
	// is left, less than three lines, is one stream.
	streams []stream
}

// newCopier prepares for pieces of so many bytes; others are copied as well,
// just slower.
func newCopier(bytes int) *copier {
	c := &copier{}
	if !hasCRC {
		return c
	}
	if bytes >= 3*maxStream {
		c.streams = append(c.streams, newStream(maxStream))
		bytes %= 3 * maxStream
	}
	if n := bytes / 3 / lineBytes * lineBytes; n > 0 {
		c.streams = append(c.streams, newStream(n))
	}
	return c
}

// stream is a length and how a CRC is carried over so many bytes.
type stream struct {
	bytes int
	shift [4][256]uint32
}

// newStream computes the tables of a length: what each byte of a CRC becomes
// when so many zero bytes follow it. The CRC is linear.
func newStream(bytes int) stream {
	s := stream{bytes: bytes}
	zeros := make([]byte, bytes)
	raw := func(crc uint32) uint32 { return ^crc32.Update(^crc, castagnoli(), zeros) }
	for i := range s.shift {
		for bit := range 8 {
			one := raw(1 << (8*i + bit))
			for v := range 1 << bit {
				s.shift[i][1<<bit|v] = s.shift[i][v] ^ one
			}
		}
	}
	return s
}

// after returns what crc becomes after the stream's length in zeros.
func (s *stream) after(crc uint32) uint32 {
	return s.shift[0][byte(crc)] ^ s.shift[1][byte(crc>>8)] ^ s.shift[2][byte(crc>>16)] ^ s.shift[3][crc>>24]
}

// copySum copies src to dst and returns the CRC-32C of everything so far. It
// sums the very words that it writes, each read once.
//
// The writes go past the caches: who reads them next is another process, later.
// They are ordered before whatever is written after fence.
//
// REQUIRES: len(dst) == len(src).
func (c *copier) copySum(dst, src []byte, sum uint32) uint32 {
	crc := ^sum
	for i := range c.streams {
		s := &c.streams[i]
		for len(src) >= 3*s.bytes {
			sums := [3]uint32{crc}
			copySum3(dst, src, s.bytes, &sums)
			crc = s.after(s.after(sums[0])^sums[1]) ^ sums[2]
			dst, src = dst[3*s.bytes:], src[3*s.bytes:]
		}
	}
	if n := len(src) / wordBytes * wordBytes; n > 0 && hasCRC {
		crc = copySum1(dst[:n], src[:n], crc)
		dst, src = dst[n:], src[n:]
	}
	return copyThenSum(dst, src, ^crc)
}

// fence orders the copies made so far before what is written next. A goroutine
// that moved to another thread meanwhile was handed over with a locked
// instruction, which orders them as well.
func fence() { storeFence() }

// copySum3 copies three streams of so many bytes that lie one behind the other,
// and carries each one's CRC on.
//
// REQUIRES: stream is a multiple of 64 and not 0, dst and src have three of it,
// SSE 4.2.
//
//go:noescape
func copySum3(dst, src []byte, stream int, sums *[3]uint32)

// copySum1 copies src and carries its CRC on.
//
// REQUIRES: len(src) is a multiple of 8 and not 0, dst is as long, SSE 4.2.
//
//go:noescape
func copySum1(dst, src []byte, sum uint32) uint32

//go:noescape
func storeFence()
