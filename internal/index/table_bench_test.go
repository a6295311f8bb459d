package index

import (
	"math/rand/v2"
	"testing"
)

func BenchmarkFind(b *testing.B) {
	const n = 1 << 20
	table := New(n)
	keys := make([]uint64, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range keys {
		keys[i] = rng.Uint64()
		table.Insert(keys[i], uint32(i))
	}
	b.Run("present", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			k := keys[i&(n-1)]
			if _, ok := table.Find(k, func(r uint32) bool { return keys[r] == k }); !ok {
				b.Fatal("lost")
			}
			i += 7919
		}
	})
	b.Run("absent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			k := rng.Uint64()
			if _, ok := table.Find(k, func(r uint32) bool { return keys[r] == k }); ok {
				b.Fatal("found")
			}
		}
	})
}
