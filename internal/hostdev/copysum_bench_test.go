package hostdev

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkCopySum compares the kernels with the plain copy on memory that is in
// no cache, in pieces as blocks have them: one after the other, gathered from
// anywhere as a store does, scattered to anywhere as a load does.
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
	ways := map[string]func(dst, src []byte, sum uint32) uint32{
		"copy": func(dst, src []byte, _ uint32) uint32 { return uint32(copy(dst, src)) },
	}
	for name, c := range everyCopier() {
		ways[name] = c.copySum
	}
	for _, piece := range []int{1 << 10, 4 << 10, 16 << 10, 256 << 10, area} {
		pieces := area / piece
		order, inOrder := rand.New(rand.NewPCG(1, 1)).Perm(pieces), make([]int, pieces)
		for i := range inOrder {
			inOrder[i] = i
		}
		for name, at := range map[string][2][]int{"ordered": {inOrder, inOrder}, "gather": {inOrder, order}, "scatter": {order, inOrder}} {
			for way, copies := range ways {
				b.Run(fmt.Sprintf("piece=%dKiB/order=%s/way=%s", piece>>10, name, way), func(b *testing.B) {
					b.SetBytes(area)
					for b.Loop() {
						for i := range pieces {
							to, from := at[0][i]*piece, at[1][i]*piece
							copies(memory[0][to:to+piece], memory[1][from:from+piece], 0)
						}
						fence()
					}
				})
			}
		}
	}
}
