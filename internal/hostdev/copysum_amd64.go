package hostdev

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

const (
	// shortest is what a kernel begins with, its first round.
	shortest = 256
	// longest bounds what is copied in one call, which the scheduler can't
	// interrupt: it takes about 10 us.
	longest = 128 << 10
)

// kernel is a way to copy and sum: the width of the registers it is done with.
type kernel int

const (
	portable kernel = iota // the library's, on machines from before 2010
	xmm                    // SSE 4.2 and PCLMULQDQ
	ymm                    // AVX2 and VPCLMULQDQ: AMD Zen 3, Intel's without AVX-512
	zmm                    // AVX-512 and VPCLMULQDQ: AMD Zen 4, Intel Ice Lake
)

// fastest returns the widest kernel that the processor has, and whose registers
// the system keeps.
func fastest() kernel {
	x := &cpu.X86
	if !x.HasSSE42 || !x.HasPCLMULQDQ {
		return portable
	}
	if !x.HasAVX2 {
		return xmm
	}
	// The package knows VPCLMULQDQ only along with AVX-512. Processors with AVX2
	// have the leaf that tells.
	const vpclmulqdq = 1 << 10
	switch {
	case x.HasAVX512F && x.HasAVX512VPCLMULQDQ:
		return zmm
	case cpuid7()&vpclmulqdq != 0:
		return ymm
	}
	return xmm
}

// accumulators is how many registers a kernel folds into: what it takes to hide
// the three to eight cycles that a fold takes.
const accumulators = 4

// registerBytes is the width of the kernel's registers.
func (k kernel) registerBytes() int { return 16 << (k - xmm) }

// folds are the multipliers that move 16 bytes on.
//
// A CRC is a remainder: of the bytes, read as a polynomial over the field of two
// elements, first bit first, divided by the CRC's own. So what was read so far
// may be replaced by anything with the same remainder, as short as 16 bytes: with
// n bits more to come it counts x^n times, and x^n may be replaced by its
// remainder, of 32 bits. A fold multiplies both halves of 16 bytes by theirs and
// adds the bytes n bits later. At the end the 16 bytes are summed as any others.
//
// The layout is known to the assembly.
type folds struct {
	round [2]uint64 // as far as all accumulators are wide, for the first half and the second
	next  [2]uint64 // as far as one is
}

func newFolds(k kernel) folds {
	distance := func(bytes int) [2]uint64 {
		// The first half is 64 bits further away. One less each: the product of two
		// numbers with the first bit lowest comes out one bit too far on.
		return [2]uint64{remainder(8*bytes + 64 - 1), remainder(8*bytes - 1)}
	}
	width := k.registerBytes()
	return folds{round: distance(accumulators * width), next: distance(width)}
}

// remainder returns that of x^n by the CRC's polynomial, as 64 bits with the
// coefficient of x^0 highest.
func remainder(n int) uint64 {
	r := uint32(1) << 31
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= crc32.Castagnoli
		}
	}
	return uint64(r) << 32
}

// copier copies with one kernel.
type copier struct {
	kernel kernel
	folds  folds
}

// newCopier returns the fastest copier of this processor.
func newCopier() *copier { return fastest().copier() }

func (k kernel) copier() *copier {
	if k == portable {
		return &copier{}
	}
	return &copier{kernel: k, folds: newFolds(k)}
}

// copySum copies src to dst and returns the CRC-32C of everything so far. It
// sums the very words that it writes, each read once.
//
// The writes go past the caches, but for those of less than a line: who reads
// them next is another process, later. They are ordered before whatever is
// written after fence. What lies ahead bytes from src, about as long as it, is
// fetched meanwhile; 0: nothing is.
//
// REQUIRES: len(dst) == len(src).
func (c *copier) copySum(dst, src []byte, sum uint32, ahead uintptr) uint32 {
	if c.kernel == portable || len(src) < shortest {
		return copyThenSum(dst, src, sum)
	}
	if head := -addressOf(dst) % lineBytes; head != 0 {
		sum = copyThenSum(dst[:head], src[:head], sum)
		dst, src = dst[head:], src[head:]
	}
	crc := ^sum
	for len(src) >= shortest {
		n := min(len(src)/lineBytes*lineBytes, longest)
		switch c.kernel {
		case zmm:
			crc = copyZMM(dst[:n], src[:n], crc, ahead, &c.folds)
		case ymm:
			crc = copyYMM(dst[:n], src[:n], crc, ahead, &c.folds)
		default:
			crc = copyXMM(dst[:n], src[:n], crc, ahead, &c.folds)
		}
		dst, src = dst[n:], src[n:]
	}
	if len(src) > 0 {
		return copyThenSum(dst, src, ^crc)
	}
	return ^crc
}

// fence orders the copies made so far before what is written next. A goroutine
// that moved to another thread meanwhile was handed over with a locked
// instruction, which orders them as well.
func fence() { storeFence() }

// copyZMM copies src and carries its CRC on, with the kernel's registers.
//
// REQUIRES: len(src) is a multiple of lineBytes and at least shortest, dst is as
// long and at a multiple of lineBytes, k is the kernel's.
//
//go:noescape
func copyZMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32

//go:noescape
func copyYMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32

//go:noescape
func copyXMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32

//go:noescape
func storeFence()

// cpuid7 returns a word of the processor's features.
func cpuid7() (ecx uint32)
