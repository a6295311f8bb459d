package embedded

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

func usageOf(all []Usage, o Owner) Usage {
	i := slices.IndexFunc(all, func(u Usage) bool { return u.Owner == o })
	if i < 0 {
		return Usage{}
	}
	return all[i]
}

func TestQuotaOfANamespace(t *testing.T) {
	w := newWorld(t, 2<<20) // 16 slots
	s := w.open(1, 1, 100, Declaration{})
	a, b := w.namespace(testSpec("a", 128<<10, 1)), w.namespace(testSpec("b", 128<<10, 1))
	if err := w.m.SetQuota(Owner{Namespace: a.ID}, 5*128<<10); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		w.storeAs(s, b, PutOptions{}, i)
	}
	for i := range 10 {
		if got := w.storeAs(s, a, PutOptions{}, i); got != store.PutGranted {
			t.Fatalf("put %d over the quota: %v", i, got)
		}
	}
	if got := w.present(a, 10); !slices.Equal(got, []int{5, 6, 7, 8, 9}) {
		t.Fatalf("%v are left; want the owner's latest five", got)
	}
	if got := w.present(b, 4); len(got) != 4 {
		t.Fatalf("%v are left of the other owner's four, though there was room", got)
	}
	if u := usageOf(w.m.UsageByNamespace(), Owner{Namespace: a.ID}); u.Chunks != 5 || u.Bytes != 5*128<<10 || u.Quota != u.Bytes || u.Refused != 0 {
		t.Fatalf("usage %+v", u)
	}
	if st := w.m.Stats(); st.Removed[RemovedQuota] != 5 {
		t.Fatalf("%+v", st)
	}
	w.m.validate(t)
	// With all of its chunks in use the owner is refused.
	w.m.Grant(a.ID, store.Lease{Engine: "e", Request: "1"}, chunkKeys(5, 6, 7), time.Hour)
	w.m.Grant(a.ID, store.Lease{Engine: "e", Request: "2"}, chunkKeys(8), time.Hour)
	if _, err := w.m.Get(s, a, store.Lease{}, []store.GetItem{{Hash: testHash(9)}}); err != nil {
		t.Fatal(err)
	}
	if got := w.storeAs(s, a, PutOptions{}, 11); got != store.PutRefused {
		t.Fatalf("put over the quota: %v", got)
	}
	if u := usageOf(w.m.UsageByNamespace(), Owner{Namespace: a.ID}); u.Refused != 1 || w.m.Stats().PutsOverQuota != 1 {
		t.Fatalf("usage %+v", u)
	}
	// The next master knows the quota.
	w.crash()
	s = w.open(1, 2, 100, Declaration{})
	for i := range 10 {
		w.storeAs(s, a, PutOptions{}, 20+i)
	}
	if u := usageOf(w.m.UsageByNamespace(), Owner{Namespace: a.ID}); u.Bytes != 5*128<<10 || u.Quota != u.Bytes {
		t.Fatalf("usage after a crash %+v", u)
	}
	// A smaller one is kept from the next put on.
	if err := w.m.SetQuota(Owner{Namespace: a.ID}, 2*128<<10); err != nil {
		t.Fatal(err)
	}
	w.storeAs(s, a, PutOptions{}, 40)
	if u := usageOf(w.m.UsageByNamespace(), Owner{Namespace: a.ID}); u.Chunks != 2 {
		t.Fatalf("usage under a smaller quota %+v", u)
	}
	if err := w.m.SetQuota(Owner{Namespace: a.ID}, 100); err != nil {
		t.Fatal(err)
	}
	if got := w.storeAs(s, a, PutOptions{}, 41); got != store.PutRefused {
		t.Fatalf("put with a quota below one chunk: %v", got)
	}
	if u := usageOf(w.m.UsageByNamespace(), Owner{Namespace: a.ID}); u.Chunks != 2 {
		t.Fatalf("a put that can't fit its quota cost the owner chunks: %+v", u)
	}
	w.m.validate(t)
}

func TestQuotaOfASaltTag(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	a, b := w.namespace(testSpec("a", 128<<10, 1)), w.namespace(testSpec("b", 128<<10, 1))
	if err := w.m.SetQuota(Owner{Tag: "red"}, 4*128<<10); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		w.storeAs(s, a, PutOptions{SaltTag: "red"}, i)
		w.storeAs(s, a, PutOptions{SaltTag: "blue"}, 10+i)
		w.storeAs(s, b, PutOptions{SaltTag: "red"}, i)
	}
	// The tag's oldest went, of both namespaces; the other tag's stay.
	if inA, inB := w.present(a, 4), w.present(b, 4); !slices.Equal(inA, []int{2, 3}) || !slices.Equal(inB, []int{2, 3}) {
		t.Fatalf("%v and %v are left of the tag's", inA, inB)
	}
	if got := w.present(a, 14); len(got) != 6 {
		t.Fatalf("%v are left of both tags", got)
	}
	red, blue := usageOf(w.m.UsageByTag(), Owner{Tag: "red"}), usageOf(w.m.UsageByTag(), Owner{Tag: "blue"})
	if red.Chunks != 4 || red.Quota != 4*128<<10 || blue.Chunks != 4 || blue.Quota != 0 {
		t.Fatalf("red %+v, blue %+v", red, blue)
	}
	w.crash()
	w.open(1, 2, 100, Declaration{})
	if got := usageOf(w.m.UsageByTag(), Owner{Tag: "red"}); got != red {
		t.Fatalf("after a crash %+v, want %+v", got, red)
	}
	w.m.validate(t)
}

// TestQuotaWithMoreOwnersThanClasses: a store of many tenants tells them apart
// by looking at each chunk.
func TestQuotaWithMoreOwnersThanClasses(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	const tenants = 100
	for i := range tenants {
		if err := w.m.SetQuota(Owner{Tag: fmt.Sprint(i)}, 3*8<<10); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 5 {
		for i := range tenants {
			if got := w.storeAs(s, ns, PutOptions{SaltTag: fmt.Sprint(i)}, 1000*i+round); got != store.PutGranted {
				t.Fatalf("tenant %d, round %d: %v", i, round, got)
			}
		}
	}
	for i := range tenants {
		for round := range 5 {
			if got, want := w.exists(ns, 1000*i+round), round >= 2; got != want {
				t.Fatalf("tenant %d: chunk of round %d is there: %v", i, round, got)
			}
		}
	}
	w.m.validate(t)
}

func TestSaltTagsBeyondTheTable(t *testing.T) {
	w := newWorld(t, 16<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	for i := range maxTags - 1 {
		w.storeAs(s, ns, PutOptions{SaltTag: fmt.Sprint("tag", i)}, i)
	}
	if got := w.storeAs(s, ns, PutOptions{SaltTag: "one too many"}, 5000); got != store.PutRefused {
		t.Fatalf("a chunk that could not be removed by its tag was taken: %v", got)
	}
	if err := w.m.SetQuota(Owner{Tag: "one too many"}, 1); !errors.Is(err, ErrQuotaTable) {
		t.Fatalf("quota: %v", err)
	}
	tag := "tag7"
	if got, err := w.m.Remove(t.Context(), Scope{SaltTag: &tag}); err != nil || got.Chunks != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := w.storeAs(s, ns, PutOptions{SaltTag: "one too many"}, 5000); got != store.PutGranted {
		t.Fatalf("with a tag that is free again: %v", got)
	}
	w.crash()
	w.open(1, 2, 100, Declaration{})
	if u := usageOf(w.m.UsageByTag(), Owner{Tag: "one too many"}); u.Chunks != 1 {
		t.Fatalf("%+v", u)
	}
	w.m.validate(t)
}

func TestLongSaltTags(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	long := strings.Repeat("x", 3000)
	w.storeAs(s, ns, PutOptions{SaltTag: long + "1"}, 1)
	w.storeAs(s, ns, PutOptions{SaltTag: long + "2"}, 2)
	tag := long + "1"
	if got, err := w.m.Remove(t.Context(), Scope{SaltTag: &tag}); err != nil || got.Chunks != 1 || w.exists(ns, 1) || !w.exists(ns, 2) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	w.storeAs(s, ns, PutOptions{}, 1)
	w.m.Drain(true)
	if got := w.storeAs(s, ns, PutOptions{}, 2); got != store.PutRefused || !w.checkBytes(s, ns, 1, 0) {
		t.Fatalf("put in a store that is drained: %v", got)
	}
	if st := w.m.Stats(); st.PutsDraining != 1 || !st.Draining {
		t.Fatalf("%+v", st)
	}
	w.m.Drain(false)
	if got := w.storeAs(s, ns, PutOptions{}, 2); got != store.PutGranted {
		t.Fatalf("put: %v", got)
	}
}

// chains stores chains of chunks that share a beginning: 0-1-2 goes on as 3-4
// and as 5-6.
func (w *world) chains(s Session, ns store.Namespace) {
	chunks := [][3]int{{0, -1, 0}, {1, 0, 1}, {2, 1, 2}, {3, 2, 3}, {4, 3, 4}, {5, 2, 3}, {6, 5, 4}}
	for _, c := range chunks {
		item := store.PutItem{Hash: testHash(c[0]), Depth: uint32(c[2])}
		if c[1] >= 0 {
			item.Parent = testHash(c[1])
		}
		g, err := w.m.PutStart(s, ns, []store.PutItem{item})
		if err != nil {
			w.tb.Fatal(err)
		}
		if ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket}}); err != nil || !ok[0] {
			w.tb.Fatal(ok, err)
		}
	}
}

func TestScopedRemoval(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	a, b := w.namespace(testSpec("a", 8<<10, 1)), w.namespace(testSpec("b", 8<<10, 1))
	remove := func(scope Scope, chunks int) {
		t.Helper()
		got, err := w.m.Remove(t.Context(), scope)
		if err != nil || got.Chunks != chunks || got.Bytes != uint64(chunks)*8<<10 {
			t.Fatalf("%+v, %v; want %d chunks", got, err, chunks)
		}
		w.m.validate(t)
	}
	red, none, unknown := "red", "", "green"
	w.chains(s, a)
	w.chains(s, b)
	w.storeAs(s, a, PutOptions{SaltTag: red}, 50)
	w.storeAs(s, b, PutOptions{SaltTag: red}, 50)
	if _, err := w.m.Pin(b.ID, chunkKeys(50), PinHard, 0); err != nil {
		t.Fatal(err)
	}
	remove(Scope{SaltTag: &unknown}, 0)
	remove(Scope{Namespace: &a.ID, Hashes: []kv.Hash{testHash(4), testHash(4), testHash(77)}}, 1)
	remove(Scope{Namespace: &a.ID, Hashes: []kv.Hash{testHash(5)}, Chain: true}, 2)
	if got := w.present(a, 7); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Fatalf("%v are left", got)
	}
	remove(Scope{Namespace: &a.ID, Hashes: []kv.Hash{testHash(1), testHash(2)}, Chain: true}, 3)
	remove(Scope{Namespace: &a.ID, Hashes: []kv.Hash{testHash(50)}, SaltTag: &none}, 0)
	remove(Scope{SaltTag: &red}, 2) // pinned or not
	remove(Scope{Namespace: &a.ID, SaltTag: &none}, 1)
	if got := w.present(b, 60); len(got) != 7 {
		t.Fatalf("%v are left of the other namespace", got)
	}
	// An open put of what is removed comes to nothing; what is read is freed later.
	g, err := w.m.PutStart(s, b, []store.PutItem{{Hash: testHash(8)}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := w.m.Get(s, b, store.Lease{}, []store.GetItem{{Hash: testHash(3)}})
	if err != nil {
		t.Fatal(err)
	}
	w.m.Grant(b.ID, store.Lease{Engine: "e", Request: "r"}, chunkKeys(0, 1), time.Minute)
	remove(Scope{Everything: true}, 7)
	if ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket}}); err != nil || ok[0] {
		t.Fatalf("a put was published after its chunk was removed: %v, %v", ok, err)
	}
	if err := w.m.Release(s, []uint64{read[0].Ref}); err != nil {
		t.Fatal(err)
	}
	if st := w.m.Stats(); st.UsedBytes != 0 || st.Chunks != 0 {
		t.Fatalf("something is left: %+v", st)
	}
	w.m.validate(t)
}

func TestScopesThatSayNothing(t *testing.T) {
	w := newWorld(t, 2<<20)
	ns, tag := w.namespace(testSpec("m", 8192, 1)).ID, "red"
	for _, scope := range []Scope{
		{}, {Chain: true}, {Everything: true, Namespace: &ns}, {Everything: true, SaltTag: &tag}, {Everything: true, Chain: true},
		{Hashes: []kv.Hash{{}}}, {Namespace: &ns, Chain: true},
	} {
		if _, err := w.m.Remove(t.Context(), scope); !errors.Is(err, ErrScope) {
			t.Errorf("%+v: %v, want ErrScope", scope, err)
		}
	}
}

func TestEvictByCommand(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	for i := range 20 {
		w.storeAs(s, ns, PutOptions{}, i)
	}
	if _, err := w.m.Pin(ns.ID, chunkKeys(1, 2), PinHard, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := w.m.Evict(EvictLimit{Chunks: 3}); err != nil || got.Chunks != 3 || got.Bytes != 3*8<<10 || got.Busy != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := w.present(ns, 20); got[0] != 1 || got[1] != 2 || got[2] != 5 {
		t.Fatalf("%v are left; want the oldest gone that are not pinned", got)
	}
	if got, err := w.m.Evict(EvictLimit{Bytes: 8<<10 + 1}); err != nil || got.Chunks != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := w.m.Evict(EvictLimit{Chunks: 1000}); err != nil || got.Chunks != 13 || got.Busy != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if st := w.m.Stats(); st.Removed[RemovedByCommand] != 18 {
		t.Fatalf("%+v", st)
	}
	w.m.validate(t)
}

func TestTopPrefixes(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8<<10, 1))
	w.chains(s, ns)
	load := func(times int, chunks ...int) {
		for range times {
			for _, c := range chunks {
				r, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(c)}})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.m.Release(s, []uint64{r[0].Ref}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	load(10, 0, 1, 2)
	load(3, 0, 1, 2, 3, 4)
	load(1, 0, 1, 2, 5)
	want := []Prefix{
		{Namespace: ns.ID, Root: testHash(0), Leaf: testHash(2), Chunks: 3, Bytes: 3 * 8 << 10, Hits: 14},
		{Namespace: ns.ID, Root: testHash(0), Leaf: testHash(4), Chunks: 5, Bytes: 5 * 8 << 10, Hits: 3},
		{Namespace: ns.ID, Root: testHash(0), Leaf: testHash(5), Chunks: 4, Bytes: 4 * 8 << 10, Hits: 1},
	}
	if got := w.m.TopPrefixes(10); !slices.Equal(got, want) {
		t.Fatalf("%+v\nwant %+v", got, want)
	}
	if got := w.m.TopPrefixes(1); !slices.Equal(got, want[:1]) {
		t.Fatalf("%+v", got)
	}
	// Without its beginning nothing of a chain can be hit.
	if _, err := w.m.Remove(t.Context(), Scope{Namespace: &ns.ID, Hashes: []kv.Hash{testHash(1)}}); err != nil {
		t.Fatal(err)
	}
	if got := w.m.TopPrefixes(1); len(got) != 1 || got[0].Root != (kv.Hash{}) && got[0].Leaf != testHash(0) {
		t.Fatalf("%+v", got)
	}
	if got := w.m.TopPrefixes(-1); got != nil {
		t.Fatalf("%+v", got)
	}
}

// TestRemovalOfATagThatHasGone: a removal by tag does not take for its own what
// has the tag's number by then.
func TestRemovalOfATagThatHasGone(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	gone, last := "gone", fmt.Sprint(maxTags-2)
	w.storeAs(s, ns, PutOptions{SaltTag: gone}, 1)
	sel, err := w.m.selection(&Scope{SaltTag: &gone})
	if err != nil {
		t.Fatal(err)
	}
	number := w.m.tagNumber[gone]
	if got, err := w.m.Remove(t.Context(), Scope{SaltTag: &gone}); err != nil || got.Chunks != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range maxTags - 1 {
		if err := w.m.SetQuota(Owner{Tag: fmt.Sprint(i)}, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	w.storeAs(s, ns, PutOptions{SaltTag: last}, 2)
	if got := w.m.tagNumber[last]; got != number {
		t.Fatalf("the last tag has number %d, want that of the one that has gone, %d", got, number)
	}
	var done Removal
	if err := w.m.removeScanned(t.Context(), &done, sel, sel.has); err != nil || done.Chunks != 0 || !w.exists(ns, 2) {
		t.Fatalf("%+v, %v: another tag's chunk went", done, err)
	}
}

// TestRemovalOfATagThatComesUp: a removal takes what a tag has when it looks, not
// what it had when it began.
func TestRemovalOfATagThatComesUp(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	tag := "below"
	sel, err := w.m.selection(&Scope{SaltTag: &tag})
	if err != nil {
		t.Fatal(err)
	}
	w.storeAs(s, ns, PutOptions{SaltTag: tag}, 1)
	w.storeAs(s, ns, PutOptions{}, 2)
	var done Removal
	if err := w.m.removeScanned(t.Context(), &done, sel, sel.has); err != nil || done.Chunks != 1 || w.exists(ns, 1) || !w.exists(ns, 2) {
		t.Fatalf("%+v, %v: 1 exists %v, 2 %v", done, err, w.exists(ns, 1), w.exists(ns, 2))
	}
}
