package hostdev

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// longestCall is where a copy becomes two calls, where there are calls.
const longestCall = 128 << 10

// checkCopySum copies src to so many bytes from where area begins, in one piece
// and then, the sum running on, in two.
func checkCopySum(t *testing.T, c *copier, area, src []byte, to, cut int, sum uint32) {
	t.Helper()
	const guard, mark = 64, 0xA5
	whole := area[:guard+to+len(src)+guard]
	dst := whole[guard+to:][:len(src)]
	want := crc32.Update(sum, castagnoli(), src)
	for _, cut := range []int{0, cut} {
		for i := range whole {
			whole[i] = mark
		}
		got := c.copySum(dst[:cut], src[:cut], sum, 0)
		got = c.copySum(dst[cut:], src[cut:], got, 0)
		fence()
		if got != want {
			t.Fatalf("%d bytes to %d, cut at %d: sum %#x, want %#x", len(src), to, cut, got, want)
		}
		if !bytes.Equal(dst, src) {
			t.Fatalf("%d bytes to %d, cut at %d: the copy differs", len(src), to, cut)
		}
		around := bytes.Count(whole[:guard+to], []byte{mark}) + bytes.Count(whole[guard+to+len(src):], []byte{mark})
		if around != to+2*guard {
			t.Fatalf("%d bytes to %d, cut at %d: written outside", len(src), to, cut)
		}
	}
}

// Every length at every alignment, after any sum, is copied exactly and summed
// as the library does, by each kernel.
func TestCopySumIsTheLibrarysSum(t *testing.T) {
	for name, c := range everyCopier() {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 7))
			source := make([]byte, 1<<20+64)
			rand.NewChaCha8([32]byte{7}).Read(source)
			area := make([]byte, len(source)+256)
			check := func(n, from, to int) {
				checkCopySum(t, c, area, source[from:from+n], to, random.IntN(n+1), random.Uint32())
			}
			for n := range 700 {
				for to := range 64 {
					check(n, random.IntN(64), to)
				}
			}
			for from := range 64 {
				for to := range 64 {
					check(512+random.IntN(4096), from, to)
				}
			}
			for n := 700; n < 6000; n++ {
				check(n, 0, 0)
				check(n, random.IntN(64), random.IntN(64))
			}
			for _, n := range []int{longestCall - 1, longestCall, longestCall + 1, longestCall + 255, longestCall + 256, 2 * longestCall, 3*longestCall + 300, 1 << 20} {
				check(n, 0, 0)
				check(n, random.IntN(64), random.IntN(64))
			}
		})
	}
}

func FuzzCopySum(f *testing.F) {
	f.Add([]byte("some"), uint16(3), uint8(0), uint16(0), uint32(0))
	f.Add(bytes.Repeat([]byte{1, 0, 0xFF}, 300), uint16(40), uint8(63), uint16(256), ^uint32(0))
	all := everyCopier()
	f.Fuzz(func(t *testing.T, pattern []byte, repeat uint16, to uint8, cut uint16, sum uint32) {
		src := bytes.Repeat(pattern[:min(len(pattern), 256)], int(repeat)%64)
		area := make([]byte, len(src)+256)
		for _, c := range all {
			checkCopySum(t, c, area, src, int(to)%64, int(cut)%(len(src)+1), sum)
		}
	})
}

// Nothing is read or written next to what was given, and what can't be read or
// written is a fault that Go knows how to report. What is fetched ahead may not
// be there.
func TestCopySumKeepsWithinItsMemory(t *testing.T) {
	page := unix.Getpagesize()
	island := func() []byte {
		m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(m) })
		for _, sea := range [][]byte{m[:page], m[2*page:]} {
			if err := unix.Mprotect(sea, unix.PROT_NONE); err != nil {
				t.Fatal(err)
			}
		}
		return m[page:]
	}
	src, dst := island(), island()
	rand.NewChaCha8([32]byte{5}).Read(src[:page])
	for name, c := range everyCopier() {
		t.Run(name, func(t *testing.T) {
			for n := range page + 1 {
				want := crc32.Checksum(src[:n], castagnoli())
				if got := c.copySum(dst[page-n:page], src[:n], 0, uintptr(page)); got != want || !bytes.Equal(dst[page-n:page], src[:n]) {
					t.Fatalf("first %d bytes: sum %#x, want %#x", n, got, want)
				}
				want = crc32.Checksum(src[page-n:page], castagnoli())
				if got := c.copySum(dst[:n], src[page-n:page], 0, uintptr(page)); got != want || !bytes.Equal(dst[:n], src[page-n:page]) {
					t.Fatalf("last %d bytes: sum %#x, want %#x", n, got, want)
				}
			}
			for _, end := range []struct{ dst, src []byte }{{dst, make([]byte, 2*page)}, {make([]byte, 2*page), src}} {
				if !faults(func() { c.copySum(end.dst[:2*page], end.src[:2*page], 0, 0) }) {
					t.Error("copied what is not there")
				}
			}
		})
	}
}

// faults reports whether do ends in a memory fault.
func faults(do func()) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		_, faulted = recover().(interface{ Addr() uintptr })
	}()
	do()
	return false
}
