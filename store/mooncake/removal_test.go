package mooncake_test

import (
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// isDenied checks that the store has chunk i in no way, and takes none.
func (r *rig) isDenied(i int) {
	r.t.Helper()
	found, err := r.Existence(r.t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(i)}})
	if err != nil || found[0] != kv.Absent {
		r.t.Errorf("existence of %d: %v, %v; want absent", i, found, err)
	}
	grants, err := r.start(i)
	if err != nil || grants[0].Status != store.PutRefused || grants[1].Status != store.PutRefused {
		r.t.Errorf("a put of %d: %v, %v; want refused", i, grants, err)
	}
	r.expect(i, false)
	r.settled()
}

// objects checks how many objects the cluster has.
func (r *rig) objects(want int) {
	r.t.Helper()
	if keys := r.cluster.Keys(); len(keys) != want {
		r.t.Errorf("the cluster has %q, want %d objects", keys, want)
	}
}

// TestLeased: what others read is not taken from them, is not found here any more,
// and goes when they are done.
func TestLeased(t *testing.T) {
	remove := map[string]func(*rig) error{
		"removed": func(r *rig) error {
			n, err := r.Remove(r.t.Context(), r.ns, []kv.Hash{hashOf(1)})
			if n != 2 {
				r.t.Errorf("%d shards removed, want 2", n)
			}
			return err
		},
		"corrupt": func(r *rig) error {
			return r.ReportFailed(r.t.Context(), r.ns, []store.FailedChunk{{Hash: hashOf(1), Corrupt: true}})
		},
	}
	for name, remove := range remove {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
			r.mustPut(1)
			r.cluster.GiveLeases()
			r.expect(1, true)
			if err := remove(r); err != nil {
				t.Fatal(err)
			}
			r.objects(2)
			r.isDenied(1)
			r.pass(time.Minute)
			r.isDenied(1)
			r.cluster.EndLeases()
			r.pass(time.Minute)
			r.mustPut(1)
			r.expect(1, true)
			r.settled()
		})
	}
}

// TestResetLeased: what had a lease during a reset is not found afterwards, however
// the namespace is opened, and goes.
func TestResetLeased(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{ClientOptions: mooncake.ClientOptions{Lease: 5 * time.Second}})
	r.mustPut(1)
	r.cluster.GiveLeases()
	r.expect(1, true)
	r.mustPut(2)
	if _, err := r.Reset(t.Context(), r.ns); err != nil {
		t.Fatal(err)
	}
	r.ns = r.open(r.spec)
	r.isDenied(1)
	r.isDenied(2)
	r.cluster.EndLeases()
	for range 8 {
		r.pass(time.Second)
		if found, err := r.Existence(t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(1)}}); err != nil || found[0] != kv.Absent {
			t.Fatalf("%v, %v", found, err)
		}
	}
	r.objects(0)
	r.mustPut(1)
	r.expect(1, true)
	r.settled()
}

// TestResetFails: a reset that the cluster does not hear of brings nothing back.
func TestResetFails(t *testing.T) {
	for name, fault := range map[string]mooncaketest.Fault{
		"unreached": {Err: mooncaketest.ErrDown}, "by a code": {Code: mooncake.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
			r.mustPut(1)
			r.engine.SetFault(only("remove-prefix", fault))
			if _, err := r.Reset(t.Context(), r.ns); err == nil {
				t.Fatal("no error")
			}
			r.ns = r.open(r.spec)
			r.pass(time.Minute)
			if found, err := r.Existence(t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(1)}}); err == nil && found[0] != kv.Absent {
				t.Errorf("%v: a chunk of before the reset", found)
			}
			r.engine.SetFault(nil)
			for range 3 {
				r.pass(time.Minute)
				if _, err := r.get(1); err != nil {
					t.Fatal(err)
				}
			}
			r.objects(0)
			r.mustPut(1)
			r.expect(1, true)
			r.settled()
		})
	}
}

// TestLateAndDown: a put that ends after a reset, and can't be removed, is not found.
func TestLateAndDown(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{ClientOptions: mooncake.ClientOptions{Lease: time.Second}})
	grants, err := r.start(1)
	if err != nil {
		t.Fatal(err)
	}
	commits := []store.PutCommit{r.commit(grants[0]), r.commit(grants[1])}
	r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
		if op == "remove" {
			return mooncaketest.Fault{Err: mooncaketest.ErrDown}
		}
		if op == "put" { // the reset comes, and is done, before the put is
			r.resetDuringPut()
		}
		return mooncaketest.Fault{}
	})
	old := r.ns
	done, err := r.PutEnd(t.Context(), old, commits)
	if err != nil || done[0] || done[1] {
		t.Errorf("a put during a reset: %v, %v", done, err)
	}
	r.ns = r.open(r.spec)
	r.objects(2)
	if found, err := r.Existence(t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(1)}}); err == nil && found[0] != kv.Absent {
		t.Errorf("%v: what came after the reset", found)
	}
	r.engine.SetFault(nil)
	r.pass(time.Minute)
	r.mustPut(1)
	r.expect(1, true)
	r.settled()
}

// resetDuringPut resets the namespace and lets it become clean.
func (r *rig) resetDuringPut() {
	if _, err := r.Reset(r.t.Context(), r.ns); err != nil {
		r.t.Error(err)
	}
	r.pass(time.Minute)
	again := r.open(r.spec)
	if _, err := r.Existence(r.t.Context(), again, nil); err != nil {
		r.t.Error(err)
	}
}

// TestRemovalGoesOn: a key that can't be removed keeps no other from it.
func TestRemovalGoesOn(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	r.mustPut(2)
	first := true
	r.engine.SetFault(only("remove", mooncaketest.Fault{Code: -500, Key: func(string) bool { was := first; first = false; return was }}))
	n, err := r.Remove(t.Context(), r.ns, []kv.Hash{hashOf(1), hashOf(2)})
	var code *mooncake.Error
	if n != 3 || !errors.As(err, &code) || code.Code != -500 {
		t.Errorf("%d removed, %v; want 3 and the code", n, err)
	}
	r.objects(1)
	r.mustPut(1) // what was left goes before
	r.expect(1, true)
}

// TestManyRemoved: however many chunks are removed that the cluster does not let go
// yet, no others are.
func TestManyRemoved(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	r.mustPut(2)
	const others = 40_000 // more keys than may be owed
	hashes := make([]kv.Hash, 0, others+1)
	for i := range others {
		hashes = append(hashes, hashOf(10+i))
	}
	hashes = append(hashes, hashOf(1))
	r.engine.SetFault(only("remove", mooncaketest.Fault{Code: -500}))
	var code *mooncake.Error
	if n, err := r.Remove(t.Context(), r.ns, hashes); n != 0 || !errors.As(err, &code) {
		t.Errorf("%d removed, %v; want the code", n, err)
	}
	r.objects(4)
	r.isDenied(1)
	r.expect(2, true)
	r.mustPut(3)
	r.engine.SetFault(nil)
	for range 2 * others / mooncake.MaxKeys * 2 {
		r.pass(time.Minute)
		r.expect(2, true)
	}
	r.objects(4)
	r.expect(3, true)
	r.mustPut(1)
	r.expect(1, true)
	r.settled()
}

// TestTooManyRemoved: what waits is bounded, and what is refused is there yet.
func TestTooManyRemoved(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	r.mustPut(2)
	const most = 1<<20 + 1<<15 // that wait, and whose keys are owed
	hashes := make([]kv.Hash, most+10_000)
	for i := range hashes {
		hashes[i] = hashOf(10 + i)
	}
	hashes[0] = hashOf(2)
	hashes[len(hashes)-1] = hashOf(1)
	r.engine.SetFault(only("remove", mooncaketest.Fault{Code: -500}))
	if _, err := r.Remove(t.Context(), r.ns, hashes[:most]); errors.Is(err, mooncake.ErrManyOwed) {
		t.Fatal(err)
	}
	if n, err := r.Remove(t.Context(), r.ns, hashes[most:]); n != 0 || !errors.Is(err, mooncake.ErrManyOwed) {
		t.Errorf("%d removed, %v; want a refusal", n, err)
	}
	r.isDenied(2)
	r.expect(1, true)
}
