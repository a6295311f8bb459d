package embedded

import (
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// storeAs stores a chunk's only shard for an owner.
func (w *world) storeAs(s Session, ns store.Namespace, opts PutOptions, chunk int) store.PutStatus {
	w.tb.Helper()
	item := store.PutItem{Hash: testHash(chunk)}
	g, err := w.m.PutStartAs(s, ns, &opts, []store.PutItem{item})
	if err != nil {
		w.tb.Fatal(err)
	}
	if g[0].Status == store.PutGranted {
		b := w.place(g[0].Place)
		fillShard(b, chunk, 0)
		if ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket, Checksum: crc32.Checksum(b, castagnoli)}}); err != nil || !ok[0] {
			w.tb.Fatal(ok, err)
		}
	}
	return g[0].Status
}

// tick lets time pass and the store notice.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	for w.m.Tick() {
	}
}

func chunkKeys(chunks ...int) (keys []store.ChunkKey) {
	for _, c := range chunks {
		keys = append(keys, store.ChunkKey{Hash: testHash(c)})
	}
	return keys
}

// present returns which of the chunks below n lookups find.
func (w *world) present(ns store.Namespace, n int) (found []int) {
	for i := range n {
		if w.exists(ns, i) {
			found = append(found, i)
		}
	}
	return found
}

func TestTimeToLive(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	if err := w.m.SetDefaultTTL(ns.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	w.storeAs(s, ns, PutOptions{}, 1)                      // a minute
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 2) // ten seconds
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 3) // ten seconds, and stored again
	w.tick(8 * time.Second)
	if !w.exists(ns, 2) {
		t.Fatal("a chunk went before its time")
	}
	if got := w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 3); got != store.PutExists {
		t.Fatalf("stored again: %v", got)
	}
	w.tick(3 * time.Second)
	if w.exists(ns, 2) || w.checkBytes(s, ns, 2, 0) {
		t.Fatal("a chunk is found after its time")
	}
	if !w.exists(ns, 1) || !w.exists(ns, 3) {
		t.Fatal("a chunk went before its time")
	}
	w.m.validate(t)
	// What remains of the time is the same for the next master.
	w.crash()
	w.open(1, 2, 100, Declaration{})
	w.tick(8 * time.Second)
	if w.exists(ns, 3) || !w.exists(ns, 1) {
		t.Fatal("the time to live did not survive the master")
	}
	w.tick(time.Minute)
	if w.exists(ns, 1) {
		t.Fatal("the namespace's time to live did not survive the master")
	}
	if st := w.m.Stats(); st.UsedBytes != 0 || st.Expiring != 0 || st.Removed[RemovedExpired] != 2 {
		t.Fatalf("after the last chunk's time: %+v", st)
	}
	w.m.validate(t)
}

func TestTimeToLiveWhenTheClockIsSet(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.storeAs(s, ns, PutOptions{TTL: time.Minute}, 1)
	for range 10 {
		w.tick(-time.Hour)
		w.tick(5 * time.Second)
	}
	if !w.exists(ns, 1) {
		t.Fatal("a chunk went before its time")
	}
	w.tick(-100 * 24 * time.Hour)
	w.tick(11 * time.Second)
	if w.exists(ns, 1) {
		t.Fatal("a chunk outlived its time because the clock was set back")
	}
}

// TestLasting: while one chunk has a deadline, whoever may find it is not told that
// what it finds lasts.
func TestLasting(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	lasting := func() bool {
		view := w.m.View(ns.ID)
		defer view.Close()
		return view.Lasting()
	}
	w.storeAs(s, ns, PutOptions{}, 1)
	if !lasting() {
		t.Fatal("no chunk has a deadline")
	}
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 2)
	if lasting() {
		t.Fatal("a chunk has a deadline")
	}
	w.storeAs(s, ns, PutOptions{}, 2) // offered again, by who sets none
	if !lasting() {
		t.Fatal("no chunk has a deadline any more")
	}
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 3)
	w.tick(11 * time.Second)
	w.tick(time.Second)
	if w.exists(ns, 3) || !lasting() {
		t.Fatal("the chunk's time is up")
	}
	w.m.validate(t)
}

// TestLeaseKeepsWhatExpires: what a lookup has promised can be loaded.
func TestLeaseKeepsWhatExpires(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.storeAs(s, ns, PutOptions{TTL: 10 * time.Second}, 1)
	w.tick(9 * time.Second)
	holder := store.Lease{Engine: "e", Request: "r"}
	w.m.Grant(ns.ID, holder, chunkKeys(1), time.Minute)
	w.tick(5 * time.Second)
	if w.exists(ns, 1) {
		t.Fatal("a lookup finds a chunk after its time")
	}
	if !w.checkBytes(s, ns, 1, 0) {
		t.Fatal("a leased chunk could not be loaded")
	}
	w.m.validate(t)
	// Stored again before it went, it is as new.
	if got := w.storeAs(s, ns, PutOptions{TTL: time.Minute}, 1); got != store.PutExists || !w.exists(ns, 1) {
		t.Fatalf("stored again: %v", got)
	}
	w.m.validate(t)
	w.tick(2 * time.Minute)
	w.tick(time.Second)
	if st := w.m.Stats(); w.exists(ns, 1) || st.UsedBytes != 0 {
		t.Fatalf("the chunk is still there: %+v", st)
	}
	w.m.validate(t)
}

func TestHardPins(t *testing.T) {
	w := newWorld(t, 2<<20) // 16 slots of 128 KiB, of which 4 may be pinned
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 128<<10, 1))
	for i := range 16 {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	got, err := w.m.Pin(ns.ID, chunkKeys(0, 1, 2, 0, 99), PinHard, 0)
	if err != nil || got.Pinned != 3 || got.Absent != 1 || got.Bytes != 3*128<<10 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := w.m.Pin(ns.ID, chunkKeys(1, 3, 4), PinHard, 0); !errors.Is(err, ErrPinBudget) {
		t.Fatalf("five pinned chunks of sixteen: %v", err)
	}
	if _, err := w.m.Pin(ns.ID, chunkKeys(2, 3), PinHard, time.Minute); err != nil {
		t.Fatalf("the budget's last chunk: %v", err)
	}
	w.m.validate(t)
	for i := 100; i < 150; i++ {
		if got := w.storeAs(s, ns, PutOptions{}, i); got != store.PutGranted {
			t.Fatalf("put beside pins: %v", got)
		}
	}
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	w.m.validate(t)
	for i := 150; i < 200; i++ {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	for i := range 4 {
		if !w.checkBytes(s, ns, i, 0) {
			t.Fatalf("chunk %d was pinned and is gone", i)
		}
	}
	if _, err := w.m.Pin(ns.ID, chunkKeys(199), PinHard, 0); !errors.Is(err, ErrPinBudget) {
		t.Fatalf("the budget after a crash: %v", err)
	}
	if got, err := w.m.Unpin(ns.ID, chunkKeys(0, 199)); err != nil || got.Pinned != 1 {
		t.Fatalf("unpin: %+v, %v", got, err)
	}
	w.tick(2 * time.Minute) // the pins of 2 and 3 end
	for i := 200; i < 250; i++ {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	if got := w.present(ns, 4); len(got) != 1 || got[0] != 1 {
		t.Fatalf("of the chunks that were pinned once, %v are left; want 1", got)
	}
	w.m.validate(t)
}

// TestSoftPinsGoLast: in the order of the policy, after all that is not pinned.
func TestSoftPinsGoLast(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 128<<10, 1))
	for i := range 16 {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	if got, err := w.m.Pin(ns.ID, chunkKeys(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), PinSoft, 0); err != nil || got.Pinned != 14 {
		t.Fatalf("%+v, %v", got, err)
	}
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	for i := 100; i < 120; i++ {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	if got := w.present(ns, 16); len(got) != 14 {
		t.Fatalf("%v are left of 14 that are pinned softly", got)
	}
	// Nothing else can go.
	for i := range 15 {
		w.storeAs(s, ns, PutOptions{Pin: PinSoft}, 200+i)
	}
	if got := w.present(ns, 16); len(got) != 1 {
		t.Fatalf("%v are left, want one", got)
	}
	w.m.validate(t)
}

func TestPinOfAPut(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 128<<10, 1))
	for i := range 6 {
		w.storeAs(s, ns, PutOptions{Pin: PinHard, TTL: time.Minute}, i)
	}
	st := w.m.Stats()
	if st.PinnedBytes != 4*128<<10 || st.PinsRefused != 2 {
		t.Fatalf("four of six fit the budget: %+v", st)
	}
	for i := range 40 {
		w.storeAs(s, ns, PutOptions{}, 100+i)
	}
	if got := w.present(ns, 6); len(got) != 6 {
		t.Fatalf("%v are left: those over the budget are pinned softly", got)
	}
	w.tick(2 * time.Minute)
	for i := range 40 {
		w.storeAs(s, ns, PutOptions{}, 200+i)
	}
	if st = w.m.Stats(); len(w.present(ns, 6)) != 0 || st.PinnedBytes != 0 {
		t.Fatalf("the pins did not end: %+v", st)
	}
	w.m.validate(t)
}

func TestPinArguments(t *testing.T) {
	w := newWorld(t, 2<<20)
	ns := w.namespace(testSpec("m", 8192, 1))
	for _, err := range []error{
		second(w.m.Pin(ns.ID, nil, PinNone, 0)), second(w.m.Pin(ns.ID, nil, PinHard+1, 0)), second(w.m.Pin(ns.ID, nil, PinHard, -1)),
		w.m.SetDefaultTTL(ns.ID, -time.Second), w.m.SetDefaultTTL(ns.ID, maxTTL+1),
		second(w.m.Evict(EvictLimit{})), second(w.m.Evict(EvictLimit{Chunks: -1})),
		second(w.m.PutStartAs(Session{}, ns, &PutOptions{Pin: 9}, nil)), second(w.m.PutStartAs(Session{}, ns, &PutOptions{TTL: -1}, nil)),
	} {
		if !errors.Is(err, ErrOption) {
			t.Errorf("%v, want ErrOption", err)
		}
	}
	unknown := store.NamespaceID(17)
	for _, err := range []error{
		second(w.m.Pin(unknown, nil, PinHard, 0)), second(w.m.Unpin(unknown, nil)), w.m.SetDefaultTTL(unknown, 0),
		w.m.SetQuota(Owner{Namespace: unknown}, 1), second(w.m.Prefetch(unknown, nil)), second(w.m.Remove(t.Context(), Scope{Namespace: &unknown})),
	} {
		if !errors.Is(err, store.ErrStaleNamespace) {
			t.Errorf("%v, want ErrStaleNamespace", err)
		}
	}
	if _, err := w.m.Prefetch(ns.ID, nil); !errors.Is(err, ErrNoTier) {
		t.Errorf("prefetch without a disk: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }
