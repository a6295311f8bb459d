package level

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// BenchmarkGlance looks for 8,192 chunks that are known to be in the cluster, one by one
// and ahead; with events they are known by those alone.
func BenchmarkGlance(b *testing.B) {
	const chunks = 8192
	var blob []byte
	for i := range uint64(chunks) {
		for word := range uint64(4) {
			blob = binary.LittleEndian.AppendUint64(blob, (4*i+word+1)*scramble)
		}
	}
	hashes, err := kv.NewHashBlob(blob, 32)
	if err != nil {
		b.Fatal(err)
	}
	for _, events := range []bool{false, true} {
		l := &Level{known: newKnown(defaultKnown, time.Hour)}
		s := &space{spec: &kv.NamespaceSpec{Groups: []kv.GroupSpec{{Shards: 1}}}, seed: scramble}
		memory := l.known
		if events {
			l.told = newTold(defaultKnown, time.Hour)
			memory = l.told.known
		}
		for i := range chunks {
			hash := hashes.At(i)
			memory.put(s.digest(0, &hash), present, 0, time.Minute.Milliseconds())
		}
		check := func(b *testing.B, answers []kv.Existence) {
			for i, e := range answers {
				if e != kv.Present {
					b.Fatalf("chunk %d is %s", i, e)
				}
			}
		}
		answers := make([]kv.Existence, chunks)
		b.Run(fmt.Sprintf("way=alone/events=%v", events), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g := &Glance{level: l, space: s}
				for i := range answers {
					hash := hashes.At(i)
					answers[i] = g.Exists(0, &hash)
				}
			}
			check(b, answers)
		})
		b.Run(fmt.Sprintf("way=ahead/events=%v", events), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g := &Glance{level: l, space: s}
				g.Ahead(0, hashes, 0, answers)
			}
			check(b, answers)
		})
	}
}
