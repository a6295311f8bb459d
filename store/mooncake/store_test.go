package mooncake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

func TestBehaviour(t *testing.T) {
	for name, keySpace := range map[string]string{"our keys": "", "in-tree keys": "team@"} {
		t.Run(name, func(t *testing.T) {
			storetest.TestStore(t, func(t *testing.T) store.Store {
				r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{ClientOptions: mooncake.ClientOptions{Keys: func(spec *kv.NamespaceSpec) (mooncake.Keyspace, error) {
					mine := *spec
					if keySpace != "" {
						mine.KeySpace = keySpace + spec.Model
					}
					return mooncake.NamespaceKeys(&mine)
				}}})
				t.Cleanup(r.settled)
				return r.Store
			})
		})
	}
}

// TestNodesShare: what one node stores another loads.
func TestNodesShare(t *testing.T) {
	cluster := mooncaketest.NewCluster(0)
	a, b := newRig(t, cluster, mooncake.Options{}), newRig(t, cluster, mooncake.Options{})
	a.mustPut(1)
	b.expect(1, true)
	b.expect(2, false)
	if grants, err := b.start(1); err != nil || grants[0].Status != store.PutExists || grants[1].Status != store.PutExists {
		t.Errorf("%v, %v", grants, err)
	}
	found, err := b.Existence(t.Context(), b.ns, []store.ChunkKey{{Hash: hashOf(1)}, {Hash: hashOf(2)}, {Group: 7, Hash: hashOf(1)}})
	if err != nil || !slices.Equal(found, []kv.Existence{kv.Present, kv.Absent, kv.Absent}) {
		t.Errorf("existence %v, %v", found, err)
	}
}

// TestDuplicates: a chunk that is asked for twice in a call is there twice.
func TestDuplicates(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	item := store.GetItem{Hash: hashOf(1), Shard: 1}
	results, err := r.Get(t.Context(), r.ns, store.Lease{}, []store.GetItem{item, item, item})
	if err != nil {
		t.Fatal(err)
	}
	places := map[uint64]bool{}
	for _, g := range results {
		if g.Status != store.GetReady || !bytes.Equal(r.memory[g.Place.Offset:][:g.Place.Bytes], shardOf(1, 1)) {
			t.Errorf("%+v", g)
		}
		places[g.Place.Offset] = true
	}
	if len(places) != 3 {
		t.Error("two references have one place")
	}
	grants, err := r.PutStart(t.Context(), r.ns, store.PutOptions{}, []store.PutItem{{Hash: hashOf(2)}, {Hash: hashOf(2)}})
	if err != nil || grants[0].Status != store.PutGranted || grants[1].Status != store.PutUnderway {
		t.Errorf("%v, %v", grants, err)
	}
}

// TestManyItems: calls are cut into the engine's measure.
func TestManyItems(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{Staging: mooncake.Range{Bytes: 2 << 20}})
	r.spec = storetest.Spec("one shard", 1)
	r.spec.Groups[0].ShardBytes = 64
	r.ns = r.open(r.spec)
	const n = 512 // as many as there are pages
	var items []store.PutItem
	var gets []store.GetItem
	for i := range n {
		items = append(items, store.PutItem{Hash: hashOf(i)})
		gets = append(gets, store.GetItem{Hash: hashOf(n - 1 - i)})
	}
	grants, err := r.PutStart(t.Context(), r.ns, store.PutOptions{}, items)
	if err != nil {
		t.Fatal(err)
	}
	var commits []store.PutCommit
	for i, g := range grants {
		copy(r.memory[g.Place.Offset:][:64], fmt.Sprintf("chunk %d", i))
		commits = append(commits, r.commit(g))
	}
	if done, err := r.PutEnd(t.Context(), r.ns, commits); err != nil || slices.Contains(done, false) {
		t.Fatal(err, done)
	}
	r.settled()
	results, err := r.Get(t.Context(), r.ns, store.Lease{}, gets)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range results {
		if want := fmt.Sprintf("chunk %d\x00", n-1-i); g.Status != store.GetReady || string(r.memory[g.Place.Offset:][:len(want)]) != want {
			t.Fatalf("item %d: %+v", i, g)
		}
	}
	keys := make([]store.ChunkKey, 3*mooncake.MaxKeys)
	for i := range keys {
		keys[i].Hash = hashOf(i)
	}
	found, err := r.Existence(t.Context(), r.ns, keys)
	if err != nil || len(found) != len(keys) || found[n-1] != kv.Present || found[n] != kv.Absent {
		t.Errorf("existence: %v", err)
	}
}

// TestPins: a put's pin and the store's replication reach the cluster.
func TestPins(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{ClientOptions: mooncake.ClientOptions{Replication: mooncake.Replication{Replicas: 2, PreferredSegments: []string{"here:1"}}}})
	var commits []store.PutCommit
	for i, pin := range []store.Pin{store.PinNone, store.PinSoft, store.PinHard} {
		grants, err := r.PutStart(t.Context(), r.ns, store.PutOptions{Pin: pin}, []store.PutItem{{Hash: hashOf(i)}})
		if err != nil {
			t.Fatal(err)
		}
		commits = append(commits, r.commit(grants[0]))
	}
	if done, err := r.PutEnd(t.Context(), r.ns, commits); err != nil || slices.Contains(done, false) {
		t.Fatal(done, err)
	}
	space, err := mooncake.NamespaceKeys(r.spec)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ soft, hard bool }{{false, false}, {true, false}, {false, true}} {
		hash := hashOf(i)
		how := r.cluster.How(kv.PoolKey(space.Prefixes[0][0], hash[:]))
		if how.Replicas != 2 || !slices.Equal(how.PreferredSegments, []string{"here:1"}) || how.SoftPin != want.soft || how.HardPin != want.hard {
			t.Errorf("chunk %d is kept as %+v", i, how)
		}
	}
}

// TestReset: the namespace's chunks go and no others; puts under way are void, and
// leave nothing behind.
func TestReset(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	other := newRig(t, r.cluster, mooncake.Options{})
	other.ns = other.open(storetest.Spec("model-2", 2))
	other.mustPut(1)
	r.mustPut(1)
	r.mustPut(2)
	open, err := r.start(3)
	if err != nil {
		t.Fatal(err)
	}
	storing, err := r.start(4)
	if err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	r.engine.SetFault(only("put", mooncaketest.Fault{Wait: func(context.Context) { close(entered); <-leave }}))
	old := r.ns
	var late sync.WaitGroup
	late.Go(func() {
		done, err := r.PutEnd(t.Context(), old, []store.PutCommit{r.commit(storing[0]), r.commit(storing[1])})
		if err != nil || slices.Contains(done, true) {
			t.Errorf("a put during the reset: %v, %v", done, err)
		}
	})
	<-entered
	if n, err := r.Reset(t.Context(), old); err != nil || n != 4 {
		t.Errorf("%d shards removed, %v; want 4", n, err)
	}
	close(leave)
	late.Wait()
	if _, err := r.start(5); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("a put under the old name: %v", err)
	}
	if done, err := r.PutEnd(t.Context(), old, []store.PutCommit{{Ticket: open[0].Ticket}}); err != nil || done[0] {
		t.Errorf("a put of before: %v, %v", done, err)
	}
	if err := r.PutRevoke(t.Context(), old, []uint64{open[1].Ticket}); err != nil {
		t.Error(err)
	}
	r.settled()
	if keys := r.cluster.Keys(); len(keys) != 2 {
		t.Errorf("%d objects are left, want the other namespace's two", len(keys))
	}
	if again := r.open(r.spec); again.ResetEpoch != old.ResetEpoch+1 {
		t.Errorf("%+v", again)
	}
	other.expect(1, true)
}

// TestReports: a failed chunk is absent once, a corrupt one is removed.
func TestReports(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	chunk := []store.ChunkKey{{Hash: hashOf(1)}}
	if err := r.ReportFailed(t.Context(), r.ns, []store.FailedChunk{{Hash: hashOf(1)}, {Group: 9}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []kv.Existence{kv.Absent, kv.Present} {
		if found, err := r.Existence(t.Context(), r.ns, chunk); err != nil || found[0] != want {
			t.Errorf("question %d: %v, %v; want %v", i, found, err, want)
		}
	}
	if err := r.ReportFailed(t.Context(), r.ns, []store.FailedChunk{{Hash: hashOf(1), Corrupt: true}}); err != nil {
		t.Fatal(err)
	}
	if left := r.cluster.Keys(); len(left) != 0 {
		t.Errorf("%q are left of a corrupt chunk", left)
	}
}

// TestStagingOutside: memory that the engine does not have is refused.
func TestStagingOutside(t *testing.T) {
	for _, r := range []mooncake.Range{{Offset: 0, Bytes: 101}, {Offset: 101, Bytes: 0}, {Offset: 50, Bytes: ^uint64(0)}} {
		_, err := mooncake.New(mooncake.Options{ClientOptions: mooncake.ClientOptions{Memory: make([]byte, 100)}, Staging: r})
		if err == nil || !strings.Contains(err.Error(), "staging") {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
