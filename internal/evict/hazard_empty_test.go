package evict

import "testing"

// TestHazardPassesOverEmptyClasses: a class that has had chunks and has none is
// not walked place by place for every victim.
func TestHazardPassesOverEmptyClasses(t *testing.T) {
	h := NewHazard(16)
	for i := range uint32(8) {
		h.Insert(i, Chunk{Key: uint64(i) + 1, Class: uint8(i)})
	}
	h.endRun()
	for i := range uint32(7) { // all but the last class become empty
		h.Remove(i)
	}
	nobodyUses := func(uint32) bool { return false }
	if r := h.worst(allClasses, nobodyUses); r != 7 {
		t.Fatalf("the worst is %d, want 7", r)
	}
	for class := range 7 {
		if h.worst(1<<class, nobodyUses); h.lists[class].cursor != places {
			t.Errorf("class %d is empty, and its search begins at place %d of %d", class, h.lists[class].cursor, places)
		}
	}
}
