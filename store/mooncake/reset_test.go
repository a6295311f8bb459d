package mooncake_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// shortLease is the lease of these tests' stores.
func shortLease() mooncake.Options {
	return mooncake.Options{ClientOptions: mooncake.ClientOptions{Lease: 4 * time.Second}}
}

// leased returns two nodes on a cluster that gives leases; the other has put chunk 1.
func leased(t *testing.T) (cluster *mooncaketest.Cluster, r, other *rig) {
	t.Helper()
	cluster = mooncaketest.NewCluster(0)
	r, other = newRig(t, cluster, shortLease()), newRig(t, cluster, shortLease())
	other.mustPut(1)
	cluster.GiveLeases()
	return cluster, r, other
}

// existence asks for chunk i.
func (r *rig) existence(i int) kv.Existence {
	r.t.Helper()
	found, err := r.Existence(r.t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(i)}})
	if err != nil {
		r.t.Fatal(err)
	}
	return found[0]
}

// reset resets the namespace and opens it again.
func (r *rig) reset() {
	r.t.Helper()
	if _, err := r.Reset(r.t.Context(), r.ns); err != nil {
		r.t.Fatal(err)
	}
	r.ns = r.open(r.spec)
}

// sweep lets time pass, second by second, while the cluster is asked.
func (r *rig) sweep(seconds int) {
	r.t.Helper()
	for range seconds {
		r.pass(time.Second)
		if found := r.existence(1); found != kv.Absent {
			r.t.Fatalf("chunk 1 of before the reset is %s", found)
		}
	}
}

// TestResetWithoutTime: a reset of which nobody waits for the cluster's part is one.
func TestResetWithoutTime(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), shortLease())
	r.mustPut(1)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Reset(done, r.ns); err == nil {
		t.Error("it says that it is through")
	}
	if _, err := r.Existence(t.Context(), r.ns, nil); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("under the old name: %v", err)
	}
	r.ns = r.open(r.spec)
	r.sweep(10)
	r.objects(0)
	r.mustPut(1)
	r.expect(1, true)
}

// TestLeaseRenewed: what another node leases again and again is never found here,
// however many removals find nothing to remove.
func TestLeaseRenewed(t *testing.T) {
	cluster, r, _ := leased(t)
	if found := r.existence(1); found != kv.Present {
		t.Fatalf("it is %s", found)
	}
	r.reset()
	r.sweep(60)
	r.objects(2)
	cluster.EndLeases() // the other is stopped
	r.sweep(10)
	r.objects(0)
	r.mustPut(1)
	r.expect(1, true)
}

// TestQuestionAcrossReset: a question that was under way when the reset came leases
// for a whole lease more.
func TestQuestionAcrossReset(t *testing.T) {
	cluster, r, other := leased(t)
	other.expect(1, true)
	asked, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.engine.SetFault(only("exist", mooncaketest.Fault{Wait: func(context.Context) { close(asked); <-goOn }}))
	old := r.ns
	go func() {
		defer close(ended)
		if _, err := r.Existence(context.Background(), old, []store.ChunkKey{{Hash: hashOf(1)}}); err != nil {
			t.Error(err)
		}
	}()
	<-asked
	r.engine.SetFault(nil)
	r.reset()
	r.pass(time.Minute)
	close(goOn)
	<-ended
	r.sweep(4)
	cluster.EndLeases()
	r.sweep(10)
	r.objects(0)
	r.mustPut(1)
	r.expect(1, true)
}

// TestGivenUpQuestion: what a question leases that was given up before a reset is
// not found either: the engine may be busy with it yet.
func TestGivenUpQuestion(t *testing.T) {
	cluster, r, other := leased(t)
	other.expect(1, true)
	r.engine.SetFault(only("exist", mooncaketest.Fault{Err: context.DeadlineExceeded}))
	if _, err := r.Existence(t.Context(), r.ns, []store.ChunkKey{{Hash: hashOf(1)}}); err == nil {
		t.Fatal("no error")
	}
	r.engine.SetFault(nil)
	r.pass(10 * time.Second) // the breaker's pause
	if _, err := r.Existence(t.Context(), r.ns, nil); err != nil {
		t.Fatal(err)
	}
	r.reset()
	r.sweep(50)
	cluster.EndLeases()
	r.sweep(10)
	r.objects(0)
}

// TestSilentDuringReset: a master that was stopped answers when it goes on what it
// was asked before, so that the lease counts from its first answer.
func TestSilentDuringReset(t *testing.T) {
	cluster, r, other := leased(t)
	other.expect(1, true)
	r.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Err: mooncaketest.ErrDown} })
	if _, err := r.Reset(t.Context(), r.ns); err == nil {
		t.Fatal("no error")
	}
	r.ns = r.open(r.spec)
	r.pass(time.Minute)
	r.engine.SetFault(nil)
	r.sweep(4)
	cluster.EndLeases()
	r.sweep(10)
	r.objects(0)
}
