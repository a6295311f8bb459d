package embedded

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// BenchmarkExists probes the chunks of one request in an index that holds many
// others.
func BenchmarkExists(b *testing.B) {
	const chunks = 8192
	for _, others := range []int{1 << 14, 1 << 20} {
		layout, err := NewLayout([16]byte{1}, uint64(chunks+others)*bytesPerRecord)
		if err != nil {
			b.Fatal(err)
		}
		m, err := Create(newTablesOnly(b, &layout), layout, Options{
			Alive: func(uint32, uint64) bool { return true }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			b.Fatal(err)
		}
		w := &world{tb: b, m: m, alive: map[uint32]bool{}}
		w.prepare()
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(testSpec("m", 4096, 1))
		fillWhole(b, m, s, ns, 0, others/2, 1)
		fillWhole(b, m, s, ns, others/2, others/2+chunks, 1)
		fillWhole(b, m, s, ns, others/2+chunks, others+chunks, 1)
		for _, what := range []struct {
			name  string
			first int
			want  kv.Existence
		}{{"present", others / 2, kv.Present}, {"absent", 1 << 30, kv.Absent}} {
			var blob []byte
			for i := range chunks {
				h := counted(what.first + i)
				blob = append(blob, h[:]...)
			}
			hashes, err := kv.NewHashBlob(blob, len(kv.Hash{}))
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("chunks=%d/others=%d/%s", chunks, others, what.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					v := m.View(ns.ID)
					ahead := 0
					for i := range chunks {
						if i == ahead {
							ahead += v.Ahead(0, hashes, i)
						}
						if v.Exists(0, hashes.At(i)) != what.want {
							b.Fatal("wrong")
						}
					}
					v.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/probe")
			})
		}
	}
}
