package index

import (
	"testing"

	"pgregory.net/rapid"
)

// TestAgainstMap drives the table and a Go map with the same operations; keys
// are drawn from few values so that probes collide and removal has to shift.
func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity = 48
		table := New(capacity)
		model := map[uint64]uint32{}
		keys := map[uint32]uint64{}
		keyOf := func(record uint32) uint64 { return keys[record] }
		next := uint32(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			key := uint64(rapid.IntRange(0, 3).Draw(t, "tag"))<<32 | uint64(rapid.IntRange(0, 90).Draw(t, "slot"))
			record, present := model[key]
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				if !present && len(model) < capacity {
					model[key], keys[next] = next, key
					table.Insert(key, next)
					next++
				}
			case 1:
				if !present {
					record = next + 1000
				}
				if got := table.Remove(key, record, keyOf); present != got {
					t.Fatalf("Remove(%#x) = %v, want %v", key, got, present)
				}
				delete(model, key)
				delete(keys, record)
			}
			for k := range model {
				got, ok := table.Find(k, func(r uint32) bool { return keys[r] == k })
				if !ok || got != model[k] {
					t.Fatalf("Find(%#x) = %d, %v, want %d", k, got, ok, model[k])
				}
			}
			if _, ok := table.Find(key, func(r uint32) bool { return keys[r] == key }); ok != hasKey(model, key) {
				t.Fatalf("Find(%#x) found = %v", key, ok)
			}
			if table.Len() != len(model) {
				t.Fatalf("Len() = %d, want %d", table.Len(), len(model))
			}
		}
	})
}

func hasKey(m map[uint64]uint32, key uint64) bool {
	_, ok := m[key]
	return ok
}

func BenchmarkFind(b *testing.B) {
	const n = 1 << 20
	table := New(n)
	keys := make([]uint64, n)
	x := uint64(88172645463325252)
	for i := range keys {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		keys[i] = x
		table.Insert(x, uint32(i))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := keys[i&(n-1)]
		if _, ok := table.Find(k, func(r uint32) bool { return keys[r] == k }); !ok {
			b.Fatal("lost")
		}
		i += 7919
	}
}
