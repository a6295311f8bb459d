package embedded

import (
	"fmt"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// BenchmarkExists probes the chunks of one request in an index that holds many
// others.
func BenchmarkExists(b *testing.B) {
	for _, others := range []int{1 << 14, 1 << 18} {
		b.Run(fmt.Sprintf("chunks=8192/others=%d", others), func(b *testing.B) {
			const chunks = 8192
			w := newWorld(b, uint64(chunks+others)*16<<10)
			s := w.open(1, 1, 100, Declaration{})
			ns := w.namespace(testSpec("m", 4096, 1))
			hashes := make([]kv.Hash, chunks)
			for i := range chunks + others {
				h := testHash(i)
				if i < chunks {
					hashes[i] = h
				}
				g, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: h}})
				if err != nil || g[0].Status != store.PutGranted {
					b.Fatal(g, err)
				}
				if _, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				v := w.m.View(ns.ID)
				for i := range hashes {
					if v.Exists(0, hashes[i]) != kv.Present {
						b.Fatal("lost")
					}
				}
				v.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/probe")
		})
	}
}
