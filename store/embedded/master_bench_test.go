package embedded

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// BenchmarkExists asks for the chunks of one request as a lookup does, in an index
// that holds many others: put one after the other in the midst of those, or each
// at some place between them. Cold: other memory has had the caches before.
func BenchmarkExists(b *testing.B) {
	const chunks = 8192
	other := make([]byte, 96<<20)
	for _, layout := range []string{"in order", "scattered"} {
		for _, others := range []int{1 << 14, 1 << 20} {
			m, ns := benchStore(b, chunks, others, layout == "scattered")
			for _, what := range []struct {
				name  string
				first int
				want  bool
			}{{"present", 0, true}, {"absent", 1 << 30, false}} {
				hashes := blobFrom(b, what.first, chunks)
				for _, cold := range []bool{false, true} {
					b.Run(fmt.Sprintf("chunks=%d/others=%d/%s/%s/cold=%v", chunks, others, layout, what.name, cold), func(b *testing.B) {
						b.ReportAllocs()
						var spent time.Duration
						for b.Loop() {
							if cold {
								for i := 0; i < len(other); i += 64 {
									other[i]++
								}
								touch(hashes.Bytes()) // they have just been received
							}
							began := time.Now()
							v := m.View(ns.ID)
							n := v.scan(0, hashes, !what.want)
							v.Close()
							spent += time.Since(began)
							if n != 0 {
								b.Fatalf("%d answers are wrong", n)
							}
						}
						b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N)/chunks, "ns/probe")
					})
				}
			}
		}
	}
}

var sink byte

func touch(data []byte) {
	for i := 0; i < len(data); i += 64 {
		sink += data[i]
	}
}

// scan asks for all of the hashes as a lookup does and counts how many are there.
// absent: how many are not.
func (v *View) scan(group int, hashes kv.HashBlob, present bool) (n int) {
	next, first, known := 0, 0, 0
	for i := range hashes.Len() {
		if i == next {
			told, present := v.Ahead(group, hashes, i)
			first, known, next = i, i+present, i+told
		}
		if (i >= first && i < known || v.Exists(group, hashes.At(i)) == kv.Present) == present {
			n++
		}
	}
	return n
}

func blobFrom(tb testing.TB, first, count int) kv.HashBlob {
	tb.Helper()
	var blob []byte
	for i := range count {
		h := counted(first + i)
		blob = append(blob, h[:]...)
	}
	hashes, err := kv.NewHashBlob(blob, len(kv.Hash{}))
	if err != nil {
		tb.Fatal(err)
	}
	return hashes
}

// benchStore has the chunks 0 to chunks in the midst of others, of which the
// numbers begin higher.
func benchStore(tb testing.TB, chunks, others int, scattered bool) (*Master, store.Namespace) {
	tb.Helper()
	layout, err := NewLayout([16]byte{1}, uint64(chunks+others)*bytesPerRecord)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := Create(newTablesOnly(tb, &layout), layout, Options{
		Alive: func(uint32, uint64) bool { return true }, Log: slog.New(slog.DiscardHandler), HugePages: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, m: m, alive: map[uint32]bool{}}
	w.prepare()
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4096, 1))
	const high = 1 << 24
	if !scattered {
		fillWhole(tb, m, s, ns, high, high+others/2, 1)
		fillWhole(tb, m, s, ns, 0, chunks, 1)
		fillWhole(tb, m, s, ns, high+others/2, high+others, 1)
		return m, ns
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(chunks + others)
	for at := 0; at < len(order); at += 512 {
		var items []store.PutItem
		for _, n := range order[at:min(at+512, len(order))] {
			if n >= chunks {
				n += high - chunks
			}
			items = append(items, store.PutItem{Hash: counted(n), Depth: 1, Parent: counted(n - 1)})
		}
		grants, err := m.PutStart(s, ns, items)
		if err != nil {
			tb.Fatal(err)
		}
		commits := make([]store.PutCommit, len(grants))
		for i := range grants {
			commits[i].Ticket = grants[i].Ticket
		}
		if done, err := m.PutEnd(s, commits); err != nil || !done[0] {
			tb.Fatal(err)
		}
	}
	return m, ns
}
