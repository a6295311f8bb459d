//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"fmt"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// BenchmarkCalls is what the way to the library costs: the double has no objects to
// look for, and those of a get are refused at once.
func BenchmarkCalls(b *testing.B) {
	r := start(b, double(b), "", nil)
	r.ready()
	for _, n := range []int{1, 64, mooncake.MaxTransfer, mooncake.MaxKeys} {
		var keys []string
		var objects []mooncake.Object
		for i := range n {
			keys = append(keys, fmt.Sprintf("a-model@tp_rank:0@pcp0@dcp0@%064x", i))
			objects = append(objects, object(keys[i], uint64(i)*64, 64)...)
		}
		b.Run(fmt.Sprintf("op=exist/keys=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Exist(b.Context(), keys); err != nil {
					b.Fatal(err)
				}
			}
		})
		if n > mooncake.MaxTransfer {
			continue
		}
		b.Run(fmt.Sprintf("op=get/keys=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Get(b.Context(), objects); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
