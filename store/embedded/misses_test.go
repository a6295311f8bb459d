package embedded

import (
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// An answer that a chunk is not there is counted by its reason, once the lookup
// is over; a chunk that is there is not.
func TestMissesAreCountedByReason(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 2))
	if err := w.m.SetDefaultTTL(ns.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	w.store(s, ns, 1, 0) // a part
	for _, chunk := range []int{2, 3} {
		w.store(s, ns, chunk, 0)
		w.store(s, ns, chunk, 1)
	}
	if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(2)}}); err != nil {
		t.Fatal(err)
	}
	want := [missReasons]uint64{}
	look := func(chunk int, found bool, reason MissReason) {
		t.Helper()
		if !found {
			want[reason]++
		}
		if got := w.exists(ns, chunk); got != found {
			t.Errorf("chunk %d found: %v", chunk, got)
		}
		if got := w.m.Stats().Missed; got != want {
			t.Errorf("chunk %d: misses %v, want %v", chunk, got, want)
		}
	}
	look(0, false, MissAbsent)
	look(1, false, MissPartial)
	look(2, false, MissLoadFailed)
	look(2, true, 0)
	// One whose time is up while a request has it on lease.
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "r"}, []store.ChunkKey{{Hash: testHash(3)}}, time.Hour)
	w.now = w.now.Add(2 * time.Minute)
	for w.m.Tick() {
	}
	look(3, false, MissExpired)
	look(2, false, MissAbsent)

	// What a lookup says twice it counts twice, and adds up at its end.
	v := w.m.View(ns.ID)
	for range 2 {
		v.Exists(0, testHash(0))
	}
	if got := w.m.Stats().Missed; got != want {
		t.Errorf("counted before the lookup is over: %v", got)
	}
	v.Close()
	want[MissAbsent] += 2
	if got := w.m.Stats().Missed; got != want {
		t.Errorf("misses %v, want %v", got, want)
	}
}

func TestMissReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := MissAbsent; r <= MissReasons; r++ {
		if seen[r.String()] || (r.String() == "unknown") != (r == MissReasons) {
			t.Errorf("reason %d is %q", r, r)
		}
		seen[r.String()] = true
	}
}
