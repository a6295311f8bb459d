package embedded

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
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

// TestCompactionEnds: two runs that have room for each other's chunks, one of them
// with a chunk that does not move, do not give each other the rest for ever.
func TestCompactionEnds(t *testing.T) {
	const perRun, bytes = 5, 6710848
	w := newBareWorld(t, 1100<<20)
	for range 8 {
		if _, err := w.m.PrepareNext(); err != nil {
			t.Fatal(err)
		}
	}
	w.m.noMoreSlabs()
	s := w.open(1, 1, 100, Declaration{})
	split := testSpec("halves", bytes, 2)
	split.TP = 2
	halves, ns := w.namespace(split), w.namespace(testSpec("m", bytes, 1))
	// Of the first run a half is left, of the second all but one.
	w.store(s, halves, 99, 0)
	for i := range 2*perRun - 1 {
		w.store(s, ns, i, 0)
	}
	for _, i := range []int{0, 1, 2, 3, 8} {
		if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(i), Corrupt: true}}); err != nil {
			t.Fatal(err)
		}
	}
	if c := w.m.alloc.class(w.m.namespaces[ns.ID].groups[0].slotBytes); w.m.alloc.perRun(c) != perRun || c.slabs != 2*int(c.run) || !w.m.alloc.scarce() {
		t.Fatalf("the runs are not as meant: %d slots each, %d slabs, scarce %v", w.m.alloc.perRun(c), c.slabs, w.m.alloc.scarce())
	}
	before := w.m.Stats().SlotsMoved
	for range 2 * perRun {
		if !w.m.Tick() {
			break
		}
	}
	if w.m.Tick() {
		t.Errorf("after %d moves there are more", w.m.Stats().SlotsMoved-before)
	}
	w.m.validate(t)
}
