package evict

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestLRUAgainstList compares with the definition: a list, most recent last.
func TestLRUAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const records = 16
		lru := NewLRU(records)
		var list []uint32
		busy := map[uint32]bool{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			r := uint32(rapid.IntRange(0, records-1).Draw(t, "record"))
			at := slices.Index(list, r)
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				if at < 0 {
					lru.Insert(r, Chunk{})
					list = append(list, r)
				}
			case 1:
				if at >= 0 {
					lru.Touch(r)
					list = append(slices.Delete(list, at, at+1), r)
				}
			case 2:
				if at >= 0 {
					lru.Remove(r)
					list = slices.Delete(list, at, at+1)
				}
			case 3:
				busy[r] = !busy[r]
			case 4:
				want := slices.IndexFunc(list, func(r uint32) bool { return !busy[r] })
				got, ok := lru.Victim(func(r uint32) bool { return busy[r] })
				if ok != (want >= 0) || ok && got != list[want] {
					t.Fatalf("Victim() = %d, %v; list %v busy %v", got, ok, list, busy)
				}
				if ok {
					list = slices.Delete(list, want, want+1)
				}
			}
			if lru.Len() != len(list) {
				t.Fatalf("Len() = %d, want %d", lru.Len(), len(list))
			}
		}
	})
}
