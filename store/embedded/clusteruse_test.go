package embedded

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

func evictedOf(w *clusterWorld) uint64 { return w.m.Stats().Removed[RemovedEvicted] }

// TestEvictionPassesOverShares: a chunk that is being put into the cluster would give
// no room, so others go, no more than are needed.
func TestEvictionPassesOverShares(t *testing.T) {
	w := newClusterWorld(t, false)
	large := w.namespace(testSpec("large", 1<<20, 1))
	w.ns = large
	for i := range 4 {
		w.store(w.s, large, i, 0)
	}
	waiting := w.c.puts
	next := 4
	for evictedOf(w) == 0 {
		w.c.puts = nil
		w.store(w.s, large, next, 0)
		do(&w.c.puts, nil)
		next++
	}
	w.m.validate(t)
	evicted := evictedOf(w)
	for range 8 {
		w.store(w.s, large, next, 0)
		do(&w.c.puts, nil)
		next++
	}
	w.m.validate(t)
	if got := evictedOf(w) - evicted; got != 8 {
		t.Errorf("%d chunks were evicted for 8", got)
	}
	for i := range 4 {
		if e, tier := w.view(i); e != kv.Present || tier != store.TierHost {
			t.Errorf("chunk %d, which waits to be put, is %s", i, e)
		}
	}
	do(&waiting, nil)
	for range 4 {
		w.store(w.s, large, next, 0)
		do(&w.c.puts, nil)
		next++
	}
	w.m.validate(t)
	w.c.known = map[disk.Key]kv.Existence{}
	for i := range 4 {
		if e, _ := w.view(i); e == kv.Present {
			t.Errorf("chunk %d, which was put, is here yet", i)
		}
	}
}

// TestUsesRenew: a chunk that is used is asked for in the cluster after a while, and
// put again if it is not there any more; by loads without a lease, too.
func TestUsesRenew(t *testing.T) {
	w := newClusterWorld(t, false)
	w.storeWhole(1)
	do(&w.c.puts, nil)
	renew := func(what string, use func(), want int) {
		t.Helper()
		use()
		if len(w.c.renewed) != want {
			t.Fatalf("%s: %d questions, want %d", what, len(w.c.renewed), want)
		}
		for _, ask := range w.c.renewed {
			ask()
		}
		w.c.renewed = nil
		w.m.validate(t)
	}
	lease := func() { w.grant(1) }
	load := func() {
		if !w.checkBytes(w.s, w.ns, 1, 0) {
			t.Fatal("it is not here")
		}
	}
	renew("at once", lease, 0)
	w.now = w.now.Add(2 * renewTick)
	renew("a lease", lease, 1)
	renew("another", lease, 0)
	w.now = w.now.Add(2 * renewTick)
	renew("a load", load, 1)
	if len(w.c.puts) != 0 {
		t.Errorf("%d puts of what is there", len(w.c.puts))
	}
	clear(w.c.objects) // evicted there
	w.now = w.now.Add(2 * renewTick)
	renew("a lease", lease, 1)
	if do(&w.c.puts, nil) != 1 || len(w.c.objects) != 1 {
		t.Error("it was not put again")
	}
	// One that goes while it is asked for is nobody's.
	w.now = w.now.Add(2 * renewTick)
	clear(w.c.objects)
	w.grant(1)
	w.m.ReleaseEngine("e")
	w.drop(1)
	renew("dropped", func() {}, 1)
	if len(w.c.puts) != 0 {
		t.Error("a chunk was put that is not here")
	}
}

// TestPinsGoAlong: a chunk is put with the pin that it has.
func TestPinsGoAlong(t *testing.T) {
	w := newClusterWorld(t, false)
	w.c.refuses = true
	for i := range 3 {
		w.storeWhole(i)
	}
	for i, kind := range []PinKind{PinNone, PinSoft, PinHard} {
		if kind != PinNone {
			if _, err := w.m.Pin(w.ns.ID, []store.ChunkKey{{Hash: testHash(i)}}, kind, 0); err != nil {
				t.Fatal(err)
			}
		}
		w.c.refuses = false
		w.grant(i)
		key := disk.Key{Namespace: w.m.namespaces[w.ns.ID].digest, Hash: testHash(i)}
		if got := w.c.pins[key]; got != store.Pin(kind) {
			t.Errorf("pin %d goes as %d", kind, got)
		}
	}
	do(&w.c.puts, nil)
}

// TestRemovalsReachTheCluster: where the operator says so, what is removed here is
// removed there: by hash whether it is here or not, by chain and tag what is here, and
// whole namespaces. Elsewhere nothing is.
func TestRemovalsReachTheCluster(t *testing.T) {
	for name, removes := range map[string]bool{"with the cluster": true, "on this node": false} {
		t.Run(name, func(t *testing.T) {
			w := newClusterWorld(t, false)
			w.c.removes = removes
			digest := w.m.namespaces[w.ns.ID].digest
			key := func(i int) disk.Key { return disk.Key{Namespace: digest, Hash: testHash(i)} }
			want := 0
			if removes {
				want = 1
			}
			for i := range 3 {
				w.storeWhole(i)
			}
			do(&w.c.puts, nil)
			w.drop(0)
			remove := func(scope Scope) {
				t.Helper()
				if _, err := w.m.Remove(t.Context(), scope); err != nil {
					t.Fatal(err)
				}
			}
			remove(Scope{Namespace: &w.ns.ID, Hashes: []kv.Hash{testHash(0), testHash(1)}})
			tag := ""
			remove(Scope{SaltTag: &tag})
			if w.c.settled != 2*want {
				t.Errorf("%d times it was made sure that the cluster's part is not forgotten", w.c.settled)
			}
			for i := range 3 {
				if got := min(w.c.forgotten[key(i)], 1); got != want {
					t.Errorf("chunk %d was removed there %d times, want %d", i, got, want)
				}
			}
			if w.c.forgotten[key(4)] != 0 || len(w.c.emptied) != 0 {
				t.Errorf("too much was removed: %v", w.c.emptied)
			}
			remove(Scope{Namespace: &w.ns.ID})
			other := w.namespace(testSpec("other", 4096, 1))
			remove(Scope{Everything: true})
			if w.c.emptied[digest] != 2*want || w.c.emptied[w.m.namespaces[other.ID].digest] != want {
				t.Errorf("namespaces were emptied there: %v", w.c.emptied)
			}
		})
	}
}

// TestPrefetchFromTheCluster: a list comes from the cluster, no more at a time than a
// lookup could be promised, and what is not there is left out.
func TestPrefetchFromTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClusterWorld(t, false)
		large := w.namespace(testSpec("large", 1<<20, 1))
		w.ns = large
		var keys []store.ChunkKey
		for i := range 20 {
			w.store(w.s, large, i, 0)
			do(&w.c.puts, nil)
			w.drop(i)
			keys = append(keys, store.ChunkKey{Hash: testHash(i)}, store.ChunkKey{Hash: testHash(100 + i)})
		}
		w.c.known = map[disk.Key]kv.Existence{}
		ended, most := false, 0
		go func() {
			begun, err := w.m.PrefetchAll(t.Context(), large.ID, keys)
			if err != nil || begun != 20 {
				t.Errorf("%d chunks, %v", begun, err)
			}
			ended = true
		}()
		for synctest.Wait(); !ended; synctest.Wait() {
			n := do(&w.c.gets, nil)
			if n == 0 {
				t.Fatal("it waits for nothing")
			}
			most = max(most, n)
		}
		do(&w.c.gets, nil)
		w.m.validate(t)
		w.c.known = map[disk.Key]kv.Existence{}
		for i := range 20 {
			if e, tier := w.view(i); e != kv.Present || tier != store.TierHost {
				t.Errorf("chunk %d is %s", i, e)
			}
		}
		if limit := int(w.m.Stats().Tiers.Cluster.PromiseBytes >> 20); most == 0 || most > limit {
			t.Errorf("%d MiB were on their way at a time, at most %d should be", most, limit)
		}
		// A cluster that brings nothing holds nobody up.
		w.c.noFetch = true
		for i := range 20 {
			w.drop(i)
		}
		if begun, err := w.m.PrefetchAll(t.Context(), large.ID, keys); begun != 0 || err != nil {
			t.Errorf("%d chunks, %v", begun, err)
		}
		bare := newWorld(t, 32<<20)
		if _, err := bare.m.PrefetchAll(t.Context(), bare.namespace(testSpec("m", 4096, 1)).ID, nil); !errors.Is(err, ErrNoTier) {
			t.Errorf("without a tier: %v", err)
		}
	})
}

// TestRemovalsThatTheClusterDoesNotTake are counted and told, and go on here.
func TestRemovalsThatTheClusterDoesNotTake(t *testing.T) {
	w := newClusterWorld(t, false)
	w.c.removes, w.c.keeps = true, true
	for i := range 3 {
		w.storeWhole(i)
	}
	do(&w.c.puts, nil)
	tag := ""
	for _, c := range []struct {
		scope        Scope
		chunks, stay int
	}{
		{Scope{Namespace: &w.ns.ID, Hashes: []kv.Hash{testHash(2), testHash(7)}}, 1, 2}, // one is not here
		{Scope{SaltTag: &tag}, 2, 2},
		{Scope{Namespace: &w.ns.ID}, 0, 0}, // which it takes
	} {
		done, err := w.m.Remove(t.Context(), c.scope)
		if done.Chunks != c.chunks || done.InCluster != c.stay || errors.Is(err, ErrRemovals) != (c.stay > 0) {
			t.Errorf("%+v, %v; want %d and %d", done, err, c.chunks, c.stay)
		}
	}
}

// TestRemovalThatMayBeForgotten: who removes is told, and what is here has gone.
func TestRemovalThatMayBeForgotten(t *testing.T) {
	w := newClusterWorld(t, false)
	w.c.removes, w.c.unsettled = true, errors.New("no room for the note")
	w.storeWhole(1)
	do(&w.c.puts, nil)
	done, err := w.m.Remove(t.Context(), Scope{Namespace: &w.ns.ID, Hashes: []kv.Hash{testHash(1)}})
	if done.Chunks != 1 || !errors.Is(err, disk.ErrUncertain) || !errors.Is(err, w.c.unsettled) {
		t.Errorf("%+v, %v", done, err)
	}
}

// TestPrefetchBesideADisk: chunks that wait for room are begun as others come from the
// cluster, though the disk has nothing to say.
func TestPrefetchBesideADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20 // of 1 MiB, for which a quarter of 32 MiB is not room at a time
		d := newDiskWorld(t, 32<<20, &disktest.Dir{}, smallDisk())
		c := newFakeCluster()
		d.m.SetCluster(c, false)
		large := d.namespace(testSpec("large", 1<<20, 1))
		digest := d.m.namespaces[large.ID].digest
		for i := range n {
			c.objects[disk.Key{Namespace: digest, Hash: testHash(i)}] = [][]byte{make([]byte, 1<<20)}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var begun int
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			begun, err = d.m.PrefetchAll(ctx, large.ID, chunkKeys(ints(0, n)...))
		}()
		for {
			synctest.Wait()
			if do(&c.gets, nil) == 0 { // it has ended, or waits for nothing
				break
			}
		}
		cancel()
		<-ended
		if err != nil || begun != n {
			t.Errorf("%d of %d are begun: %v", begun, n, err)
		}
		d.m.validate(t)
		d.unmount()
	})
}
