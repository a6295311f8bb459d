package embedded

import (
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// fillStale stores chunks and begins a reset of them.
func fillStale(t *testing.T, w *world, s Session, ns store.Namespace, chunks int) {
	t.Helper()
	fillWhole(t, w.m, s, ns, 0, chunks, 1)
	if begun, err := w.m.beginReset(ns.ID); !begun || err != nil {
		t.Fatal(begun, err)
	}
}

// TestResetIsOneStep: chunks are gone for lookups at once, however many there
// are, and none was dropped for that; they go a bounded number at a time.
func TestResetIsOneStep(t *testing.T) {
	const chunks = 3*staleStep + 17
	w := newWorld(t, 128<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	fillStale(t, w, s, ns, chunks)
	if got := w.m.Stats(); got.Chunks != chunks || got.Removed[RemovedReset] != 0 {
		t.Fatalf("after the first step %d chunks are there, %d were dropped", got.Chunks, got.Removed[RemovedReset])
	}
	v := w.m.View(ns.ID)
	for i := range chunks {
		if h := counted(i); v.Exists(0, h) != 0 {
			t.Fatalf("chunk %d is found", i)
		}
	}
	v.Close()
	w.m.validate(t)
	dropped := uint64(0)
	for more := true; more; {
		more = w.m.sweepStale()
		now := w.m.Stats().Removed[RemovedReset]
		if now-dropped > staleStep {
			t.Fatalf("%d chunks in one step, %d are the most", now-dropped, staleStep)
		}
		dropped = now
		w.m.validate(t)
	}
	if dropped != chunks || w.m.Stats().UsedBytes != 0 {
		t.Fatalf("%d of %d chunks were dropped, %d bytes are used", dropped, chunks, w.m.Stats().UsedBytes)
	}
}

// TestSweepGoesRoundWhileRecordsGrow: a sweep that began in the middle of the
// records comes to those before, also when others have been added meanwhile.
func TestSweepGoesRoundWhileRecordsGrow(t *testing.T) {
	const early, late = staleStep - 24, 3 * staleStep
	w := newWorld(t, 256<<20)
	s := w.open(1, 1, 100, Declaration{})
	other, ns := w.namespace(testSpec("o", 4<<10, 1)), w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, other, 0, early, 1)
	if err := w.m.Reset(other.ID); err != nil { // the sweep stops behind these
		t.Fatal(err)
	}
	fillStale(t, w, s, ns, late)
	w.m.sweepStale()
	ns = w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, ns, 2*late, 3*late, 1)
	for w.m.sweepStale() {
	}
	if st := w.m.Stats(); st.Removed[RemovedReset] != early+late || st.UsedBytes != late*4<<10 {
		t.Fatalf("%d chunks were dropped, want %d; %d bytes are used", st.Removed[RemovedReset], early+late, st.UsedBytes)
	}
	w.m.validate(t)
}

// TestStaleChunksAreNotAdopted: chunks that were reset and not dropped are not
// taken over.
func TestStaleChunksAreNotAdopted(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	fillStale(t, w, s, ns, 100)
	ns = w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, ns, 50, 60, 1) // the same hashes, anew
	if rec := w.crash(); rec.Chunks != 10 || rec.Dropped != 100 {
		t.Fatalf("%+v", rec)
	}
	v := w.m.View(ns.ID)
	defer v.Close()
	for i := range 100 {
		if h := counted(i); (v.Exists(0, h) != 0) != (i >= 50 && i < 60) {
			t.Errorf("chunk %d", i)
		}
	}
	w.m.validate(t)
}

// TestPutsOfAStaleChunkAreVoid: also while its record has not been come to yet.
func TestPutsOfAStaleChunkAreVoid(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	grants, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(1)}})
	if err != nil {
		t.Fatal(err)
	}
	if begun, err := w.m.beginReset(ns.ID); !begun || err != nil {
		t.Fatal(begun, err)
	}
	done, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket}})
	if err != nil || done[0] || w.exists(ns, 1) || w.m.Stats().UsedBytes != 0 {
		t.Errorf("published %v, %v; %d bytes are used", done, err, w.m.Stats().UsedBytes)
	}
	w.m.validate(t)
}

// TestMoreResetsThanGenerations: a chunk is never taken for one of a later
// generation.
func TestMoreResetsThanGenerations(t *testing.T) {
	w := newWorld(t, 128<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, ns, 0, 3*staleStep, 1)
	for begun := range generations + 5 {
		ok, err := w.m.beginReset(ns.ID)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if begun != generations-1 {
				t.Fatalf("refused after %d", begun)
			}
			if err := w.m.Reset(ns.ID); err != nil { // sweeps first
				t.Fatal(err)
			}
			break
		}
	}
	if got := w.m.Stats().Chunks; got != 0 {
		t.Fatalf("%d chunks are left", got)
	}
	w.m.validate(t)
}

// TestDroppedWhileHeld: the number of a record that somebody knows is not another
// chunk's, and its lease is no part of the leases' share.
func TestDroppedWhileHeld(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 128<<10, 1))
	for i := range 3 {
		w.store(s, ns, i, 0)
	}
	held := store.Lease{Engine: "e", Request: "1"}
	w.m.Grant(ns.ID, held, chunkKeys(0, 1, 2), time.Hour)
	got, err := w.m.Get(s, ns, held, []store.GetItem{{Hash: testHash(1)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	if st := w.m.Stats(); st.LeasedBytes != 0 {
		t.Fatalf("%d bytes of chunks that are gone are leased", st.LeasedBytes)
	}
	w.m.validate(t)
	ns = w.namespace(testSpec("m", 128<<10, 1))
	for i := range 3 {
		w.store(s, ns, 10+i, 0)
	}
	w.m.validate(t)
	w.m.ReleaseLeases("e", []string{"1"})
	w.m.validate(t)
	if err := w.m.Release(s, []uint64{got[0].Ref}); err != nil {
		t.Fatal(err)
	}
	w.m.validate(t)
	if free := len(w.m.free); free != 3 {
		t.Fatalf("%d record numbers are free, want 3", free)
	}
}
