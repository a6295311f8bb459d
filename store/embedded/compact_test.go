package embedded

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// TestCompactionPassesOverWhatDoesNotMove: a run with a chunk that is half stored
// can't be emptied, and the next one is.
func TestCompactionPassesOverWhatDoesNotMove(t *testing.T) {
	const perSlab = minSlabBytes / (8 << 10)
	w := newWorld(t, 8<<20) // four slabs
	s := w.open(1, 1, 100, Declaration{})
	halves, ns := w.namespace(testSpec("halves", 8<<10, 2)), w.namespace(testSpec("m", 8<<10, 1))
	w.store(s, halves, 0, 0)
	for i := 1; i < 4*perSlab; i++ {
		w.store(s, ns, i, 0)
	}
	// Of the first slab nothing is left but the half, of the second three chunks, of
	// the third one in two.
	var gone []kv.Hash
	for i := 1; i < 3*perSlab; i++ {
		if i < 2*perSlab-3 || i >= 2*perSlab && i%2 == 0 {
			gone = append(gone, testHash(i))
		}
	}
	if _, err := w.m.Remove(t.Context(), Scope{Namespace: &ns.ID, Hashes: gone}); err != nil {
		t.Fatal(err)
	}
	if n := w.m.alloc.freeSlabs(); n != 0 {
		t.Fatalf("%d slabs are free before", n)
	}
	for w.m.Tick() {
	}
	if n := w.m.alloc.freeSlabs(); n != 1 {
		t.Errorf("%d slabs are free, want 1", n)
	}
	for i := 2*perSlab - 3; i < 2*perSlab; i++ {
		if !w.checkBytes(s, ns, i, 0) {
			t.Errorf("chunk %d has not arrived", i)
		}
	}
	w.m.validate(t)
}
