package level_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// absentFor asks for chunk i again and again while time passes.
func (r *rig) absentFor(i, seconds int) {
	r.t.Helper()
	for range seconds {
		time.Sleep(time.Second)
		if err := r.ask(r.t.Context(), i); err != nil {
			r.t.Fatal(err)
		}
		if found := r.exists(i); found != kv.Absent {
			r.t.Fatalf("chunk %d of before the reset is %s", i, found)
		}
	}
}

// TestResetWithoutTime: a reset that has no time left for the cluster makes the
// objects of before it unusable all the same, and they go.
func TestResetWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{ResetCluster: true})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		r.Leave(r.digest)
		if err := r.Reset(done, r.digest); err != nil {
			t.Fatal(err)
		}
		r.absentFor(1, 20)
		if left := objectsIn(r.cluster); left != 0 || !r.Clean(r.digest) {
			t.Errorf("%d objects are left, clean %v", left, r.Clean(r.digest))
		}
		if err, taken := r.put(1, 1); err != nil || !taken {
			t.Errorf("after it: %v, %v", err, taken)
		}
	})
}

// TestResetsCross: a reset that comes while one before it ends leaves the cluster
// until its own part has come through.
func TestResetsCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{ResetCluster: true})
		r.Leave(r.digest)
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			if op != "remove-prefix" {
				return mooncaketest.Fault{}
			}
			return mooncaketest.Fault{Wait: func(context.Context) { r.Leave(r.digest) }}
		})
		if err := r.Reset(t.Context(), r.digest); err != nil {
			t.Fatal(err)
		}
		r.engine.SetFault(nil)
		if r.Takes(r.digest) {
			t.Error("the cluster is used, and the second reset is not through")
		}
		if err := r.Reset(t.Context(), r.digest); err != nil {
			t.Fatal(err)
		}
		if !r.Takes(r.digest) || r.Clean(r.digest) {
			t.Errorf("after both: takes %v, clean %v", r.Takes(r.digest), r.Clean(r.digest))
		}
	})
}

// TestSoiled: a namespace of which the cluster may have chunks of before a reset is
// not used before those are gone.
func TestSoiled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		before := newRig(t, cluster, level.Options{ResetCluster: true})
		before.digest = before.open("another", false)
		if err, _ := before.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, cluster, level.Options{ResetCluster: true})
		r.digest = r.open("another", true)
		if r.Clean(r.digest) {
			t.Error("it is clean from the beginning")
		}
		r.absentFor(1, 20)
		if left := objectsIn(r.cluster); left != 0 || !r.Clean(r.digest) {
			t.Errorf("%d objects are left, clean %v", left, r.Clean(r.digest))
		}
		if err, taken := r.put(1, 0); err != nil || !taken {
			t.Errorf("after it: %v, %v", err, taken)
		}
	})
}

// open opens another model's namespace.
func (r *rig) open(model string, soiled bool) [32]byte {
	s := spec()
	s.Model = model
	r.Open(s, soiled)
	return s.Digest()
}

// TestForgottenAtOnce: a chunk that is bad is found no more from that moment on,
// whatever waits before.
func TestForgottenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			if op == "put" {
				return mooncaketest.Fault{Wait: func(context.Context) { <-release }}
			}
			return mooncaketest.Fault{}
		})
		var waiting outcome
		for i := 2; i < 5; i++ { // more than are put at a time
			if !r.Demote(r.chunk(i, i), r.pieces(i), waiting.put) {
				t.Fatal("refused")
			}
			synctest.Wait()
		}
		key := r.key(1)
		r.Forget(&key)
		r.expect(1, kv.Absent)
		r.absentFor(1, 5)
		if left := objectsIn(r.cluster); left != 0 {
			t.Errorf("%d objects are left", left)
		}
		close(release)
		synctest.Wait()
	})
}
