package evict

import (
	"fmt"
	"testing"
)

// BenchmarkTurnover is a request's chunk in a full store: an eviction and an
// insertion, with a touch of another chunk for each.
func BenchmarkTurnover(b *testing.B) {
	const records, chain = 1 << 20, 64
	for _, name := range Names() {
		b.Run(fmt.Sprintf("records=%d/policy=%s", records, name), func(b *testing.B) {
			p, err := New(name, records)
			if err != nil {
				b.Fatal(err)
			}
			next := uint64(1)
			insert := func(r uint32) {
				c := Chunk{Key: next * 0x9E3779B97F4A7C15, Depth: uint32(next % chain)}
				if c.Depth > 0 {
					c.Parent = (next - 1) * 0x9E3779B97F4A7C15
				}
				next++
				p.Insert(r, c)
			}
			for r := range uint32(records) {
				insert(r)
			}
			inUse := func(uint32) bool { return false }
			b.ReportAllocs()
			for b.Loop() {
				r, ok := p.Victim(inUse)
				if !ok {
					b.Fatal("no victim")
				}
				insert(r)
				p.Touch(uint32(next * 2654435761 % records))
			}
		})
	}
}
