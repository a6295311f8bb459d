package embedded

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestRunsLeaveLittleOver: of any size that is not huge for the store, and a run
// is no longer than it must be.
func TestRunsLeaveLittleOver(t *testing.T) {
	for _, gib := range []uint64{1, 5, 16, 200, 2000} {
		l, err := NewLayout([16]byte{}, gib<<30)
		if err != nil {
			t.Fatal(err)
		}
		for slot := uint64(l.MinSlotBytes()); slot <= l.SlabBytes/8; slot += slot/7 + slotAlign {
			slot = slot / slotAlign * slotAlign
			run := uint64(l.runOf(uint32(slot)))
			slots := run * l.SlabBytes / slot
			if left := 1 - float64(slots*slot)/float64(run*l.SlabBytes); left > 0.04 {
				t.Errorf("%d GiB, slots of %d: runs of %d slabs of %d leave %.1f %%", gib, slot, run, l.SlabBytes, 100*left)
			}
			if slots > uint64(l.SlotsPerSlab) || run > 1 && (l.SlabBytes%slot)*64 <= l.SlabBytes {
				t.Errorf("%d GiB, slots of %d: a run of %d slabs with %d slots", gib, slot, run, slots)
			}
		}
	}
}

// TestLongShardsTakeRuns: a shard longer than a slab is stored, survives the
// master, and gives its slabs back.
func TestLongShardsTakeRuns(t *testing.T) {
	w := newWorld(t, 128<<20)
	l := w.m.Layout()
	if l.MaxShardBytes() <= l.SlabBytes {
		t.Fatalf("a shard of %d bytes is the longest", l.MaxShardBytes())
	}
	s := w.open(1, 1, 100, Declaration{})
	long, short := w.namespace(testSpec("long", int(l.SlabBytes)+4096, 1)), w.namespace(testSpec("short", 64<<10, 2))
	for i := range 10 {
		w.store(s, short, i, 0)
		w.store(s, short, i, 1)
		w.store(s, long, i, 0)
	}
	w.m.validate(t)
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	w.m.validate(t)
	for i := range 10 {
		if !w.checkBytes(s, long, i, 0) || !w.checkBytes(s, short, i, 1) {
			t.Fatalf("chunk %d is lost", i)
		}
	}
	if _, err := w.m.Remove(t.Context(), Scope{Everything: true}); err != nil {
		t.Fatal(err)
	}
	if st := w.m.Stats(); st.UsedSlabs != 0 || w.m.alloc.freeSlabs() != int(l.Slabs) || st.IdleBytes != 0 {
		t.Fatalf("%d slabs of %d are free, %+v", w.m.alloc.freeSlabs(), l.Slabs, st)
	}
	w.m.validate(t)
}

// TestSlabTableThatCannotBe: sizes in the midst of a run, beyond the memory or of
// no slots are cleared at recovery.
func TestSlabTableThatCannotBe(t *testing.T) {
	w := newWorld(t, 128<<20)
	l := w.m.Layout()
	s := w.open(1, 1, 100, Declaration{})
	long := w.namespace(testSpec("long", int(l.SlabBytes)+4096, 1))
	w.store(s, long, 1, 0)
	first := uint32(slices.IndexFunc(w.m.alloc.slabs, func(s slab) bool { return s.slotBytes != 0 }))
	size := w.m.alloc.slabs[first].slotBytes
	w.m.seg.setSlabClass(first+1, 8192)
	w.m.seg.setSlabClass(first+5, 12345)
	w.m.seg.setSlabClass(l.Slabs-1, size) // its run would go beyond
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	if !w.checkBytes(s, long, 1, 0) {
		t.Fatal("the chunk is lost")
	}
	if free, run := w.m.alloc.freeSlabs(), int(l.runOf(size)); free != int(l.Slabs)-run {
		t.Fatalf("%d slabs of %d are free beside a run of %d", free, l.Slabs, run)
	}
	w.m.validate(t)
}

// TestOldSizesGiveWay: a size whose chunks nobody has used for long gives its
// slabs to one that has to drop young chunks, and keeps those that are used.
func TestOldSizesGiveWay(t *testing.T) {
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	a, b := w.namespace(testSpec("a", 64<<10, 1)), w.namespace(testSpec("b", 96<<10, 1))
	for i := range 1000 {
		w.store(s, a, i, 0)
		w.now = w.now.Add(time.Millisecond)
	}
	w.now = w.now.Add(time.Hour)
	hot := []int{}
	for i := 100; i < 1000; i += 90 {
		hot = append(hot, i)
	}
	for i := range 5000 {
		if got := w.store(s, b, i, 0); got != store.PutGranted {
			t.Fatalf("put %d: %v", i, got)
		}
		if i%20 == 0 {
			for _, h := range hot {
				w.checkBytes(s, a, h, 0)
			}
		}
		w.now = w.now.Add(time.Millisecond)
	}
	for _, h := range hot {
		if !w.checkBytes(s, a, h, 0) {
			t.Errorf("chunk %d is in use all the time and went with its slab", h)
		}
	}
	st := w.m.Stats()
	if used := usageOf(w.m.UsageByNamespace(), Owner{Namespace: b.ID}).Bytes; float64(used) < 0.8*float64(st.CapacityBytes) {
		t.Errorf("%d of %d bytes are the model's that is used: %+v", used, st.CapacityBytes, st)
	}
	if st.SlabsTaken == 0 || st.SlotsMoved == 0 {
		t.Errorf("%+v", st)
	}
	w.m.validate(t)
}

// TestCompaction: slabs that are nearly empty come free by moving what is left,
// whole chunks, except what is in use.
func TestCompaction(t *testing.T) {
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 60<<10, 3)) // 34 slots in a slab
	const chunks = 300
	for i := range chunks {
		for shard := range 3 {
			w.store(s, ns, i, shard)
		}
	}
	var gone []kv.Hash
	for i := range chunks {
		if i%6 != 0 {
			gone = append(gone, testHash(i))
		}
	}
	if _, err := w.m.Remove(t.Context(), Scope{Namespace: &ns.ID, Hashes: gone}); err != nil {
		t.Fatal(err)
	}
	read, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(6), Shard: 1}})
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(w.place(read[0].Place))
	open, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(9999)}})
	if err != nil {
		t.Fatal(err)
	}
	was := w.m.Stats().UsedSlabs
	for w.m.Tick() {
		w.m.validate(t)
	}
	if w.m.Stats().SlotsMoved != 0 {
		t.Fatal("slots were moved while there was memory enough")
	}
	// Somebody takes what is free, again and again.
	var taken []uint32
	for more := true; more; {
		taken = append(taken, w.m.alloc.homes[0].free...)
		w.m.alloc.homes[0].free = nil
		more = w.m.Tick()
		w.m.validate(t)
	}
	w.m.alloc.homes[0].free = append(w.m.alloc.homes[0].free, taken...)
	st := w.m.Stats()
	if least := chunks / 6 * 3 / 34; st.UsedSlabs > least+4 || st.SlotsMoved == 0 {
		t.Fatalf("%d slabs before, %d after; %d are needed: %+v", was, st.UsedSlabs, least, st)
	}
	if !bytes.Equal(before, w.place(read[0].Place)) {
		t.Fatal("a slot that is read was moved")
	}
	if ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: open[0].Ticket}}); err != nil || !ok[0] {
		t.Fatalf("the open put: %v, %v", ok, err)
	}
	check := func() {
		t.Helper()
		for i := 0; i < chunks; i += 6 {
			for shard := range 3 {
				if !w.checkBytes(s, ns, i, shard) {
					t.Fatalf("chunk %d is lost", i)
				}
			}
		}
	}
	check()
	if err := w.m.Release(s, []uint64{read[0].Ref}); err != nil {
		t.Fatal(err)
	}
	w.m.validate(t)
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	w.m.validate(t)
	check()
}

// TestMoveThatDoesNotEnd: a master that dies while it moves a slot leaves the
// chunk whole, or none of it.
func TestMoveThatDoesNotEnd(t *testing.T) {
	for point := range 6 {
		w := newWorld(t, 64<<20)
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(testSpec("m", 60<<10, 3))
		for i := range 30 {
			for shard := range 3 {
				w.store(s, ns, i, shard)
			}
		}
		hash := testHash(7)
		rec, _ := w.m.findLocked(ns.ID, 0, &hash)
		before := bytes.Clone(w.mem[:w.m.seg.DataOffset])
		r := w.m.seg.peekRecord(rec)
		second, _ := w.m.seg.readSlot(r.slot)
		w.m.moveSlotLocked(rec, second.next) // from the middle of the list
		after := w.mem[:w.m.seg.DataOffset]
		// Of the words that changed, only the first ones were written.
		changed := 0
		for at := 0; at < len(after); at += 8 {
			if !bytes.Equal(before[at:at+8], after[at:at+8]) {
				if changed >= point {
					copy(after[at:], before[at:at+8])
				}
				changed++
			}
		}
		if changed < 4 {
			t.Fatalf("a move changed %d words", changed)
		}
		w.crash()
		s = w.open(1, 2, 100, Declaration{})
		w.m.validate(t)
		for i := range 30 {
			whole := w.exists(ns, i)
			if !whole && i != 7 {
				t.Errorf("%d words written: chunk %d is lost", point, i)
			}
			for shard := range 3 {
				if got := w.checkBytes(s, ns, i, shard); got != whole {
					t.Errorf("%d words written: chunk %d, shard %d: %v", point, i, shard, got)
				}
			}
		}
	}
}
