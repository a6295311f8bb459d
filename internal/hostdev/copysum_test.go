package hostdev

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// maxPlanned is the longest stream where there are streams.
const maxPlanned = 32 << 10

// Every length around the streams', at every alignment of both sides, after any
// sum, is copied exactly and summed as the library does.
func TestCopySumIsTheLibrarysSum(t *testing.T) {
	source := rand.NewChaCha8([32]byte{7})
	random := rand.New(source)
	lengths := []int{0, 1, 7, 8, 63, 64, 65, 191, 192, 193, 2048, 8192, 3*maxPlanned - 1, 3 * maxPlanned, 3*maxPlanned + 1, 7 * maxPlanned, 1 << 20}
	for range 200 {
		lengths = append(lengths, random.IntN(40_000))
	}
	for _, n := range lengths {
		from, to, sum := random.IntN(64), random.IntN(64), random.Uint32()
		src := make([]byte, from+n)
		_, _ = source.Read(src) // it never fails
		dst := bytes.Repeat([]byte{0xA5}, to+n+64)
		planned := n
		if random.IntN(4) == 0 {
			planned = random.IntN(40_000) // a copier for other pieces
		}
		got := newCopier(planned).copySum(dst[to:to+n], src[from:], sum)
		fence()
		if want := crc32.Update(sum, castagnoli(), src[from:]); got != want {
			t.Fatalf("%d bytes: sum %#x, want %#x", n, got, want)
		}
		if !bytes.Equal(dst[to:to+n], src[from:]) {
			t.Fatalf("%d bytes: the copy differs", n)
		}
		if around := append(dst[:to:to], dst[to+n:]...); bytes.Count(around, []byte{0xA5}) != to+64 {
			t.Fatalf("%d bytes: written outside", n)
		}
	}
}

// A registration of as many lengths as segments does not get as many tables, and
// is copied all the same.
func TestCopiersAreBounded(t *testing.T) {
	c := copiers{}
	src := make([]byte, 5*commonPiece)
	rand.NewChaCha8([32]byte{3}).Read(src)
	dst := make([]byte, len(src))
	for i := range 10 * maxCopiers {
		n := len(src) - 997*(i%400) - i
		if got, want := c.of(n).copySum(dst[:n], src[:n], 7), crc32.Update(7, castagnoli(), src[:n]); got != want || !bytes.Equal(dst[:n], src[:n]) {
			t.Fatalf("%d bytes differ", n)
		}
	}
	if len(c) > maxCopiers+1 {
		t.Errorf("%d copiers, want at most %d", len(c), maxCopiers+1)
	}
}

// BenchmarkCopySum compares the fused copy with the plain one on memory that is
// in no cache, in pieces as blocks have them.
func BenchmarkCopySum(b *testing.B) {
	const area = 128 << 20
	memory := make([][]byte, 2)
	for i := range memory {
		var err error
		if memory[i], err = unix.Mmap(-1, 0, area, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = unix.Munmap(memory[i]) })
	}
	for _, piece := range []int{2 << 10, 8 << 10, 32 << 10, 1 << 20} {
		for name, copies := range map[string]func(dst, src []byte, sum uint32) uint32{"fused": newCopier(piece).copySum, "plain": copyThenSum} {
			b.Run(fmt.Sprintf("%dKiB/%s", piece>>10, name), func(b *testing.B) {
				b.SetBytes(area)
				for b.Loop() {
					for at := 0; at < area; at += piece {
						copies(memory[0][at:at+piece], memory[1][at:at+piece], 0)
					}
				}
			})
		}
	}
}
