package mooncake

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// TestSums: what arrived whole has the sum of its bytes, however much it is and whoever
// summed it; what did not keeps what it had.
func TestSums(t *testing.T) {
	memory := make([]byte, 20<<20)
	for i := range memory {
		memory[i] = byte(i>>3) ^ byte(i>>13)
	}
	for _, size := range []uint64{64, 1 << 20, 4 << 20} {
		const n, lost = 5, 1
		objects, answers, at := make([]Object, n), make([]Answer, n), []int{2, 0, 4, 1, 3}
		shards := make([]Shard, n)
		for k := range objects {
			objects[k].Range = Range{Offset: uint64(k) * size, Bytes: size}
			answers[k] = Answer(size)
			shards[at[k]].Sum = 7
		}
		answers[lost] = -704
		sumWhole(memory, objects, answers, shards, at)
		for k, o := range objects {
			want := uint32(7)
			if k != lost {
				want = storetest.Sum(memory[o.Range.Offset:][:size])
			}
			if got := shards[at[k]].Sum; got != want {
				t.Errorf("object %d of %d bytes: %x, want %x", k, size, got, want)
			}
		}
	}
}
