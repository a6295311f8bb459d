package hostdev

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
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
	engine, store := &region{mapped: &shm.Mapping{}, data: memory[0]}, memory[1]
	for _, piece := range []int{1 << 10, 4 << 10, 16 << 10, 256 << 10, area} {
		inOrder := make([]worker.ShardCopy, area/piece)
		for i := range inOrder {
			inOrder[i] = worker.ShardCopy{BlockID: uint32(i), Memory: store[i*piece:][:piece]}
		}
		anyOrder := make([]worker.ShardCopy, len(inOrder))
		for i, block := range rand.New(rand.NewPCG(1, 1)).Perm(len(inOrder)) {
			anyOrder[i] = worker.ShardCopy{BlockID: uint32(block), Memory: inOrder[i].Memory}
		}
		blocks := segment{region: engine, stride: uint64(piece), bytes: piece}
		for _, c := range []struct {
			order     string
			direction worker.Direction
			batch     []worker.ShardCopy
		}{{"ordered", worker.Store, inOrder}, {"gather", worker.Store, anyOrder}, {"scatter", worker.Load, anyOrder}} {
			measure := func(way string, copyBatch func()) {
				b.Run(fmt.Sprintf("piece=%dKiB/order=%s/way=%s", piece>>10, c.order, way), func(b *testing.B) {
					b.SetBytes(area)
					for b.Loop() {
						copyBatch()
					}
				})
			}
			measure("copy", func() {
				for i := range c.batch {
					to, from := c.batch[i].Memory, blocks.block(c.batch[i].BlockID)
					if c.direction == worker.Load {
						to, from = from, to
					}
					copy(to, from)
				}
			})
			for name, kernel := range everyCopier() {
				m := &mapping{copier: kernel, held: 1, shards: [][]segment{{blocks}}}
				measure(name, func() {
					if _, err := m.inOrder(b.Context(), c.direction, c.batch, func(int) bool { return true }); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}
