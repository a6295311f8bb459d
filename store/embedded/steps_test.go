package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// TestCallsAreDoneInSteps: a call that names very many items lets others in
// between, and checks anew what it relies on.
func TestCallsAreDoneInSteps(t *testing.T) {
	w := newWorld(t, 64<<20)
	for _, items := range []int{0, 1, itemStep, itemStep + 1, 3*itemStep - 1} {
		next, calls := 0, 0
		err := w.m.inSteps(items, func(from, to int) error {
			if from != next || to-from > itemStep || w.m.mu.TryLock() {
				t.Fatalf("items %d to %d of %d, after %d", from, to, items, next)
			}
			next = to
			calls++
			return nil
		})
		if want := max((items+itemStep-1)/itemStep, 1); err != nil || next != items || calls != want {
			t.Errorf("%d items: %d were done in %d steps, want %d; %v", items, next, calls, want, err)
		}
	}
	broken, calls := errors.New("no"), 0
	if err := w.m.inSteps(10*itemStep, func(int, int) error { calls++; return broken }); !errors.Is(err, broken) || calls != 1 {
		t.Errorf("%v after %d steps", err, calls)
	}
}

// TestLongCalls: what is done in steps is done whole.
func TestLongCalls(t *testing.T) {
	const chunks = 3*itemStep + 7
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	items, gets, keys := make([]store.PutItem, chunks+1), make([]store.GetItem, chunks+1), make([]int, chunks)
	for i := range items {
		items[i].Hash, gets[i].Hash = testHash(i), testHash(i)
	}
	for i := range keys {
		keys[i] = i
	}
	grants, err := w.m.PutStart(s, ns, items[:chunks])
	if err != nil {
		t.Fatal(err)
	}
	commits := make([]store.PutCommit, chunks)
	for i, g := range grants {
		if g.Status != store.PutGranted {
			t.Fatalf("put %d: %v", i, g.Status)
		}
		commits[i].Ticket = g.Ticket
	}
	done, err := w.m.PutEnd(s, commits)
	for i, ok := range done {
		if !ok || err != nil {
			t.Fatalf("put %d: %v, %v", i, ok, err)
		}
	}
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "1"}, chunkKeys(keys...), time.Hour)
	if got := w.m.Stats().LeasedBytes; got != chunks*4<<10 {
		t.Errorf("%d bytes are leased, want %d", got, chunks*4<<10)
	}
	got, err := w.m.Get(s, ns, store.Lease{}, gets)
	if err != nil {
		t.Fatal(err)
	}
	refs := make([]uint64, 0, chunks)
	for i, g := range got {
		if want := map[bool]store.GetStatus{true: store.GetReady, false: store.GetAbsent}[i < chunks]; g.Status != want {
			t.Fatalf("chunk %d: %v", i, g.Status)
		}
		refs = append(refs, g.Ref)
	}
	w.m.validate(t)
	if err := w.m.Release(s, refs); err != nil || w.m.Stats().OpenReads != 0 {
		t.Errorf("%d reads are open, %v", w.m.Stats().OpenReads, err)
	}
	w.m.validate(t)
}

// TestLeasedChunkIsNotSweptAgain: a chunk whose time is up and that is leased does
// not make every Tick look through all records.
func TestLeasedChunkIsNotSweptAgain(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	w.storeAs(s, ns, PutOptions{TTL: 2 * time.Second}, 1)
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "1"}, chunkKeys(1), time.Hour)
	w.tick(5 * time.Second)
	if passed(w.m.clock.elapsed, w.m.nextDue) {
		t.Fatal("the next Tick looks through all records again")
	}
	w.m.ReleaseLeases("e", []string{"1"})
	w.tick(leasedAgain + 2*time.Second)
	if got := w.m.Stats(); got.UsedBytes != 0 {
		t.Fatalf("%d bytes are used by a chunk whose time is up", got.UsedBytes)
	}
}
