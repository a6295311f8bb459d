package embedded

import (
	"fmt"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// allThere is a cluster that has everything.
type allThere struct{ *fakeCluster }

func (allThere) Glance([32]byte) Glance { return allThere{} }

func (allThere) Exists(uint32, *kv.Hash) kv.Existence { return kv.Present }

func (allThere) Ahead(_ uint32, _ kv.HashBlob, _ int, answers []kv.Existence) {
	for i := range answers {
		answers[i] = kv.Present
	}
}

// BenchmarkFaraway looks for 8,192 chunks that are known to be in the cluster, beside what
// the node has.
func BenchmarkFaraway(b *testing.B) {
	const chunks = 8192
	for _, others := range []int{1 << 14, 1 << 20} {
		m, ns := benchStore(b, 0, others, false)
		m.SetCluster(allThere{newFakeCluster()}, false)
		hashes := blobFrom(b, 1<<30, chunks)
		b.Run(fmt.Sprintf("chunks=%d/others=%d", chunks, others), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v := m.View(ns.ID)
				n := v.scan(0, hashes, true)
				v.Close()
				if n != chunks {
					b.Fatalf("%d are there", n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/probe")
		})
	}
}
