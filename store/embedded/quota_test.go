package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/store"
)

// silentPolicy fails a test that asks it for a victim.
type silentPolicy struct {
	evict.Policy
	t *testing.T
}

func (p silentPolicy) VictimOf(uint64, func(uint32) bool) (uint32, bool) {
	p.t.Error("the whole store's order was asked for one owner's chunk")
	return 0, false
}

// TestQuotaCostsNoSearch: with hundreds of owners a chunk of one of them is found
// in a bounded number of steps, and the others' are not passed over.
func TestQuotaCostsNoSearch(t *testing.T) {
	w := newWorld(t, 32<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	const tenants = 300
	for i := range tenants {
		if err := w.m.SetQuota(Owner{Tag: fmt.Sprint(i)}, 2*4<<10); err != nil {
			t.Fatal(err)
		}
	}
	w.m.policy = silentPolicy{w.m.policy, t}
	for round := range 4 {
		for i := range tenants {
			if got := w.storeAs(s, ns, PutOptions{SaltTag: fmt.Sprint(i)}, 1000*i+round); got != store.PutGranted {
				t.Fatalf("tenant %d, round %d: %v", i, round, got)
			}
		}
	}
	if got := w.m.Stats(); got.Chunks != 2*tenants || got.Removed[RemovedQuota] != 2*tenants {
		t.Fatalf("%d chunks are left, %d went", got.Chunks, got.Removed[RemovedQuota])
	}
	w.m.validate(t)
}

// TestLoweredQuotaIsKeptInSteps: neither a put nor a Tick drops very many chunks
// at a time, and in the end the quota is kept.
func TestLoweredQuotaIsKeptInSteps(t *testing.T) {
	const chunks = 3*quotaStep + 100
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, ns, 0, chunks, 1)
	if err := w.m.SetQuota(Owner{Namespace: ns.ID}, 10*4<<10); err != nil {
		t.Fatal(err)
	}
	w.m.validate(t)
	if got := w.storeAs(s, ns, PutOptions{}, chunks); got != store.PutRefused {
		t.Fatalf("put: %v", got)
	}
	gone := w.m.Stats().Removed[RemovedQuota]
	if gone != quotaStep {
		t.Fatalf("a put dropped %d chunks, want %d", gone, quotaStep)
	}
	for more := true; more; {
		more = w.m.Tick()
		now := w.m.Stats().Removed[RemovedQuota]
		if now-gone > quotaStep {
			t.Fatalf("%d chunks at a time, %d are the most", now-gone, quotaStep)
		}
		gone = now
		w.m.validate(t)
	}
	if got := w.m.Stats().Chunks; got != 10 {
		t.Fatalf("%d chunks are left, want 10", got)
	}
	// The chain's beginning is what is left.
	v := w.m.View(ns.ID)
	defer v.Close()
	for i := range 10 {
		if h := counted(i); v.Exists(0, h) == 0 {
			t.Errorf("chunk %d of the chain has gone", i)
		}
	}
}

// TestLoweredQuotaIsKeptBehindLeases: chunks in use at the front of an owner's
// list neither keep the others from going nor puts from being granted, and make
// no Tick ask for another at once.
func TestLoweredQuotaIsKeptBehindLeases(t *testing.T) {
	const chunks, leased, quota = 1000, 300, 500
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	held := make([]int, leased)
	for i := range chunks {
		w.store(s, ns, i, 0)
		if i < leased {
			held[i] = i
		}
	}
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "1"}, chunkKeys(held...), time.Hour)
	if err := w.m.SetQuota(Owner{Namespace: ns.ID}, quota*4<<10); err != nil {
		t.Fatal(err)
	}
	if got := w.storeAs(s, ns, PutOptions{}, chunks); got != store.PutRefused { // it drops no more than its part
		t.Fatalf("put: %v", got)
	}
	if got := w.m.Stats().Removed[RemovedQuota]; got != quotaStep {
		t.Fatalf("a put dropped %d chunks, want %d", got, quotaStep)
	}
	for w.m.Tick() {
	}
	if got := w.m.Stats().Chunks; got != quota {
		t.Fatalf("%d chunks are left, want %d", got, quota)
	}
	if got := w.storeAs(s, ns, PutOptions{}, chunks); got != store.PutGranted {
		t.Fatalf("put: %v", got)
	}
	w.m.validate(t)
	// Lower than what is leased: that is kept when the leases have ended.
	if err := w.m.SetQuota(Owner{Namespace: ns.ID}, 10*4<<10); err != nil {
		t.Fatal(err)
	}
	for range 2 * chunks / quotaStep {
		w.m.Tick()
	}
	if got := w.m.Stats().Chunks; got != leased || w.m.Tick() {
		t.Fatalf("%d chunks are left, want the %d that are leased; and nothing more can be done", got, leased)
	}
	w.m.ReleaseLeases("e", []string{"1"})
	for w.m.Tick() {
	}
	if got := w.m.Stats().Chunks; got != 10 {
		t.Fatalf("%d chunks are left, want 10", got)
	}
	w.m.validate(t)
}

// TestLoweredQuotaOutlivesTheMaster: one that was not kept yet is kept by the next.
func TestLoweredQuotaOutlivesTheMaster(t *testing.T) {
	w := newWorld(t, 64<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4<<10, 1))
	fillWhole(t, w.m, s, ns, 0, 3*quotaStep, 1)
	if err := w.m.SetQuota(Owner{Namespace: ns.ID}, 10*4<<10); err != nil {
		t.Fatal(err)
	}
	w.m.Tick()
	w.crash()
	if before := w.m.Stats().Chunks; before <= 10 {
		t.Fatalf("%d chunks are left before the test", before)
	}
	for w.m.Tick() {
	}
	if got := w.m.Stats().Chunks; got != 10 {
		t.Fatalf("%d chunks are left, want 10", got)
	}
	w.m.validate(t)
}

// TestQuotaSparesWhatIsUsed: a chunk that was used since the hand came by stays,
// and one in use does anyway.
func TestQuotaSparesWhatIsUsed(t *testing.T) {
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 128<<10, 1))
	if err := w.m.SetQuota(Owner{Namespace: ns.ID}, 4*128<<10); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // the hand goes round once, and 0 goes
		w.storeAs(s, ns, PutOptions{}, i)
	}
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "1"}, chunkKeys(1), time.Hour)
	w.m.ReleaseLeases("e", []string{"1"})
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "2"}, chunkKeys(2), time.Hour)
	w.storeAs(s, ns, PutOptions{}, 5)
	for i, want := range []bool{false, true, true, false, true, true} {
		if got := w.exists(ns, i); got != want {
			t.Errorf("chunk %d is there: %v", i, got)
		}
	}
	w.m.validate(t)
}
