package hostdev

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// newLookaheadTest returns a mapping whose shards have pieces of these lengths,
// spread over one region, and a batch of its blocks in any order.
func newLookaheadTest(random *rand.Rand, pieces []int, shards int) (*mapping, []worker.ShardCopy) {
	const blocks = 16
	r, bytes := &region{mapped: &shm.Mapping{}}, 0
	var segments []segment
	for _, piece := range pieces {
		stride := piece + random.IntN(200)
		segments = append(segments, segment{region: r, offset: uint64(len(r.data)), stride: uint64(stride), bytes: piece})
		r.data = append(r.data, make([]byte, blocks*stride)...)
		bytes += piece
	}
	for i := range r.data {
		r.data[i] = byte(random.Uint32())
	}
	m := &mapping{copier: newCopier(), held: 1, shards: [][]segment{segments}}
	var batch []worker.ShardCopy
	for range shards {
		c := worker.ShardCopy{BlockID: uint32(random.IntN(blocks)), Memory: make([]byte, bytes)}
		for i := range c.Memory {
			c.Memory[i] = byte(random.Uint32())
		}
		batch = append(batch, c)
	}
	return m, batch
}

// What is fetched while a byte is copied is the byte that is copied so much later.
func TestLookaheadIsWhatIsCopiedNext(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for _, pieces := range [][]int{{16 << 10, 16 << 10}, {4 << 10}, {1 << 10, 1 << 10, 1 << 10}, {64}, {100, 3000, 7}, {40 << 10, 1}, {aheadBytes - 1}, {aheadBytes + 1}} {
		for _, direction := range []worker.Direction{worker.Store, worker.Load} {
			t.Run(fmt.Sprint(pieces, direction), func(t *testing.T) {
				m, batch := newLookaheadTest(random, pieces, 5)
				type place = *byte
				var order []place // of the sources' bytes
				for _, c := range batch {
					at := 0
					for _, s := range m.segmentsOf(&c) {
						from := s.block(c.BlockID)
						if direction == worker.Load {
							from = c.Memory[at:][:s.bytes]
						}
						for i := range from {
							order = append(order, &from[i])
						}
						at += s.bytes
					}
				}
				l := m.lookaheadOf(direction, batch)
				for copied := 0; copied < len(order); {
					switch left := len(order) - copied; {
					case left <= aheadBytes:
						if len(l.rest) > 0 {
							t.Fatalf("%d bytes from the end there are %d more", left, len(l.rest))
						}
					case &l.rest[0] != order[copied+aheadBytes]:
						t.Fatalf("byte %d: what is fetched is not what is copied %d bytes later", copied, aheadBytes)
					case &l.rest[len(l.rest)-1] != order[copied+aheadBytes+len(l.rest)-1]:
						t.Fatalf("byte %d: the end of what is fetched is not copied", copied)
					}
					n := 1 + random.IntN(6000)
					l.advance(n)
					copied += n
				}
			})
		}
	}
}

// However pieces and what is fetched are cut, all of a shard is copied and summed.
func TestLookaheadCopiesEverything(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for range 300 {
		pieces := make([]int, 1+random.IntN(6))
		for i := range pieces {
			pieces[i] = 1 + random.IntN([]int{100, 1000, 5000, 40000}[random.IntN(4)])
		}
		m, batch := newLookaheadTest(random, pieces, 1+random.IntN(4))
		for _, direction := range []worker.Direction{worker.Store, worker.Load} {
			ahead := m.lookaheadOf(direction, batch)
			for i := range batch {
				c := &batch[i]
				if err := m.shard(direction, c, &ahead); err != nil {
					t.Fatal(err)
				}
				if c.Checksum != sum(c.Memory) {
					t.Fatalf("pieces %v: checksum %#x, want %#x", pieces, c.Checksum, sum(c.Memory))
				}
				at := 0
				for _, s := range m.segmentsOf(c) {
					if string(s.block(c.BlockID)) != string(c.Memory[at:][:s.bytes]) {
						t.Fatalf("pieces %v: the copy differs", pieces)
					}
					at += s.bytes
				}
			}
			for i := range batch { // a load writes something else
				for j := range batch[i].Memory {
					batch[i].Memory[j]++
				}
			}
		}
	}
}
