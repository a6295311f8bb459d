package embedded

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestNamespaceOfAnotherSegmentIsStale: a store that had to start empty numbers
// its namespaces anew, so that a client's old number may be another model's.
func TestNamespaceOfAnotherSegmentIsStale(t *testing.T) {
	w := newWorld(t, 2<<20)
	w.namespace(testSpec("a", 8192, 1))
	old := w.namespace(testSpec("b", 8192, 1))

	layout, err := NewLayout([16]byte{9, 9, 9}, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	w.mem = make(heapMemory, layout.FileBytes)
	if w.m, err = Create(w.mem, layout, w.options()); err != nil {
		t.Fatal(err)
	}
	w.prepare()
	s := w.open(1, 1, 100, Declaration{})
	w.namespace(testSpec("b", 8192, 1))
	other := w.namespace(testSpec("a", 8192, 1))
	w.store(s, other, 1, 0)
	if other.ID != old.ID {
		t.Fatal("the test wants two namespaces of one number")
	}
	items := []store.GetItem{{Hash: testHash(1)}}
	if r, err := w.m.Get(s, old, store.Lease{}, items); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("get of another model's chunk: %+v, %v; want ErrStaleNamespace", r, err)
	}
	if g, err := w.m.PutStart(s, old, []store.PutItem{{Hash: testHash(2)}}); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("put into another model's namespace: %+v, %v; want ErrStaleNamespace", g, err)
	}
	if err := w.m.ReportFailed(s, old, []store.FailedChunk{{Hash: testHash(1)}}); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("report of another model's chunk: %v; want ErrStaleNamespace", err)
	}
}

// TestResetOutlivesTheMaster: a name of before a reset stays stale whatever
// happens to the master, and one of after it stays good.
func TestResetOutlivesTheMaster(t *testing.T) {
	w := newWorld(t, 2<<20)
	spec := testSpec("m", 8192, 1)
	before := w.namespace(spec)
	if err := w.m.Reset(before.ID); err != nil {
		t.Fatal(err)
	}
	after := w.namespace(spec)
	w.crash()
	s := w.open(1, 1, 100, Declaration{})
	if _, err := w.m.PutStart(s, before, nil); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("put under a name from before the reset: %v", err)
	}
	if got := w.store(s, after, 1, 0); got != store.PutGranted {
		t.Errorf("put under a good name: %v", got)
	}
}

// TestResetBeforeADeclaration: what an adopted segment granted may still be
// written, even where a reset has emptied the slabs around it.
func TestResetBeforeADeclaration(t *testing.T) {
	w := newWorld(t, 2<<20) // one slab
	s := w.open(1, 1, 100, Declaration{})
	spec := testSpec("m", 256<<10, 1)
	ns := w.namespace(spec)
	w.store(s, ns, 1, 0)
	read, _ := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(1)}})
	put, _ := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(2)}})
	w.crash()
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	w.open(1, 2, 100, Declaration{Reads: []uint64{read[0].Ref}, Puts: []uint64{put[0].Ticket}})
	w.m.validate(t)
	other := w.open(2, 3, 200, Declaration{})
	ns = w.namespace(spec)
	for i := 10; i < 18; i++ {
		g, err := w.m.PutStart(other, ns, []store.PutItem{{Hash: testHash(i)}})
		if err != nil {
			t.Fatal(err)
		}
		if g[0].Status != store.PutGranted {
			continue
		}
		if at := g[0].Place.Offset; at == read[0].Place.Offset || at == put[0].Place.Offset {
			t.Fatalf("the slot at %d was handed out, which a client declared", at)
		}
	}
	w.m.validate(t)
}

// TestReadOfAnExpiredChunkIsDeclared: a chunk's time may pass between the death
// of the master that let a client read it and the client's word that it still does.
func TestReadOfAnExpiredChunkIsDeclared(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 256<<10, 1))
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 1)
	read, _ := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(1)}})
	w.crash()
	// A lease keeps the chunk where it is when its time has passed.
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "r"}, chunkKeys(1), 30*time.Second)
	w.tick(20 * time.Second)
	s = w.open(1, 2, 100, Declaration{Reads: []uint64{read[0].Ref}})
	w.m.validate(t)
	w.tick(time.Minute)
	for i := 10; i < 18; i++ {
		g, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(i)}})
		if err != nil {
			t.Fatal(err)
		}
		if g[0].Status == store.PutGranted && g[0].Place.Offset == read[0].Place.Offset {
			t.Fatalf("the slot at %d was handed out, which a client said it reads", g[0].Place.Offset)
		}
	}
	w.m.validate(t)
}

// TestEmptySlabsOfAnAdoptedSegmentComeBack: slabs that are kept for a client that
// may still copy are free once it has declared.
func TestEmptySlabsOfAnAdoptedSegmentComeBack(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 256<<10, 1))
	w.store(s, ns, 1, 0)
	w.crash()
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	s = w.open(1, 2, 100, Declaration{})
	if got := w.store(s, w.namespace(testSpec("big", 2<<20, 1)), 1, 0); got != store.PutGranted {
		t.Fatalf("put that needs the whole slab: %v", got)
	}
	w.m.validate(t)
}

// TestShardUnderwayDoesNotExist: another's put may yet be revoked.
func TestShardUnderwayDoesNotExist(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 2))
	g, _ := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(1)}})
	other := w.open(2, 2, 200, Declaration{})
	if got := w.store(other, ns, 1, 0); got != store.PutUnderway {
		t.Fatalf("put of a shard under way: %v, want PutUnderway", got)
	}
	if got := w.store(other, ns, 1, 1); got != store.PutGranted {
		t.Fatalf("put of the other shard: %v", got)
	}
	if err := w.m.PutRevoke(s, []uint64{g[0].Ticket}); err != nil {
		t.Fatal(err)
	}
	if got := w.store(other, ns, 1, 0); got != store.PutGranted {
		t.Fatalf("put of a revoked shard: %v", got)
	}
	if got := w.store(s, ns, 1, 0); got != store.PutExists {
		t.Fatalf("put of a stored shard: %v", got)
	}
	w.m.validate(t)
}

// TestManyReadersAndLeases: the counters of one chunk do not wrap around.
func TestManyReadersAndLeases(t *testing.T) {
	const many = math.MaxUint16 + 1
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 1, 1)) // the smallest slots
	w.store(s, ns, 1, 0)
	if _, err := w.m.Get(s, ns, store.Lease{}, make([]store.GetItem, 1)); err != nil {
		t.Fatal(err)
	}
	items, keys := make([]store.GetItem, many), make([]store.ChunkKey, many)
	for i := range items {
		items[i].Hash, keys[i].Hash = testHash(1), testHash(1)
	}
	results, err := w.m.Get(s, ns, store.Lease{}, items)
	if err != nil {
		t.Fatal(err)
	}
	if rec, ok := w.m.findLocked(ns.ID, 0, &items[0].Hash); !ok || !w.m.live[rec].inUse() {
		t.Error("a chunk with many readers counts as unused")
	}
	var refs []uint64
	for _, r := range results {
		if r.Status == store.GetReady {
			refs = append(refs, r.Ref)
		}
	}
	w.m.opts.LeaseShare = 1e6
	w.m.Grant(ns.ID, store.Lease{Request: "r"}, keys, time.Minute)
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	s2 := w.namespace(testSpec("m", 1, 1))
	w.store(s, s2, 2, 0) // takes the record over
	w.m.ReleaseEngine("")
	if err := w.m.Release(s, refs); err != nil {
		t.Fatal(err)
	}
	for i := range w.m.live {
		if w.m.live[i].inUse() {
			t.Fatalf("record %d is left in use: %+v", i, w.m.live[i])
		}
	}
	w.m.validate(t)
}

// TestClientBelongsToItsProcess: a session is not taken over by another process,
// which would declare away what the first one is copying.
func TestClientBelongsToItsProcess(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	w.alive[200] = true
	if err := w.m.OpenSession(Session{Client: 1, Number: 2}, 200, 7, Declaration{}); err == nil {
		t.Error("another process took the session over")
	}
	if _, err := w.m.PutStart(s, w.namespace(testSpec("m", 8192, 1)), nil); err != nil {
		t.Errorf("the first process' session: %v", err)
	}
	w.crash()
	if err := w.m.OpenSession(Session{Client: 1, Number: 3}, 200, 7, Declaration{}); err == nil {
		t.Error("another process declared for a client of the adopted segment")
	}
	if w.m.Stats().Undeclared != 1 {
		t.Error("the client counts as declared")
	}
	w.open(1, 4, 100, Declaration{})
}

// countingPolicy counts the questions for a victim.
type countingPolicy struct {
	evict.Policy
	asked *int
}

func (p countingPolicy) Victim(inUse func(uint32) bool) (uint32, bool) {
	*p.asked++
	return p.Policy.Victim(inUse)
}

// TestFullClassIsSearchedOnce: a batch that finds no room does not look for it
// item by item, with everybody else waiting.
func TestFullClassIsSearchedOnce(t *testing.T) {
	w := newWorld(t, 2<<20)
	asked := 0
	w.m.opts.NewPolicy = func(records int) evict.Policy { return countingPolicy{evict.NewLRU(records), &asked} }
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 1<<20, 1)) // two slots
	items := make([]store.PutItem, 100)
	for i := range items {
		items[i].Hash = testHash(i)
	}
	grants, err := w.m.PutStart(s, ns, items)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range grants {
		if want := i < 2; (g.Status == store.PutGranted) != want || !want && g.Status != store.PutNoSpace {
			t.Errorf("item %d: status %v", i, g.Status)
		}
	}
	if asked > 2 {
		t.Errorf("a victim was looked for %d times", asked)
	}
	if got := w.m.Stats().PutsNoSpace; got != 98 {
		t.Errorf("%d puts without space, want 98", got)
	}
	w.m.validate(t)
}
