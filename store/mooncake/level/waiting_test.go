package level_test

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// forgetMany forgets chunks that nobody has.
func (r *rig) forgetMany(n int) (taken int) {
	for i := range n {
		key := disk.Key{Namespace: r.digest, Hash: kv.Hash{15: 1}}
		binary.LittleEndian.PutUint32(key.Hash[:], uint32(i))
		if r.Forget(&key) {
			taken++
		}
	}
	return taken
}

// TestManyForgotten: however many chunks are removed, no others are; those that wait
// for it are denied like the rest, until they are gone.
func TestManyForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 40_000 // more keys than may be owed
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		for i := 1; i <= 2; i++ {
			if err, ok := r.put(i, i); err != nil || !ok {
				t.Fatal(err, ok)
			}
		}
		key := r.key(1)
		if taken := r.forgetMany(others); taken != others || !r.Forget(&key) || !r.Forget(&key) {
			t.Fatalf("%d were taken", taken)
		}
		if left := objectsIn(r.cluster); left != 4 {
			t.Fatalf("%d objects are left: before the first removal", left)
		}
		if err, _ := r.put(1, 1); err == nil {
			t.Error("a chunk was put that is to be removed")
		}
		if err := r.get(1, 9); err == nil {
			t.Error("a chunk came that is to be removed")
		}
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Absent)
		time.Sleep(time.Minute)
		if left := objectsIn(r.cluster); left != 2 {
			t.Errorf("%d objects are left, want those of the other chunk", left)
		}
		if err := r.ask(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		r.expect(2, kv.Present)
		if err, ok := r.put(1, 1); err != nil || !ok {
			t.Errorf("it can't be put when it is gone: %v", err)
		}
		r.expect(1, kv.Present)
	})
}

// TestResetTakesWhatWaits: a namespace of which all goes has nothing that waits.
func TestResetTakesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{ResetCluster: true})
		key := r.key(1)
		r.forgetMany(1_000_000) // which would take minutes
		r.Forget(&key)
		r.RemoveAll(r.digest)
		if !r.Forget(&key) {
			t.Error("what goes anyway is refused")
		}
		time.Sleep(2 * time.Minute)
		if !r.Clean(r.digest) {
			t.Fatal("it is not clean")
		}
		if err, ok := r.put(1, 1); err != nil || !ok {
			t.Errorf("it can't be put: %v", err)
		}
	})
}

// TestTooManyForgotten: what waits is bounded, and so is what it stands for.
func TestTooManyForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		if err, _ := r.put(1, 1); err != nil {
			t.Fatal(err)
		}
		const n = 1<<20 + 1<<16
		if taken := r.forgetMany(n); taken < 1<<20 || taken == n {
			t.Errorf("%d of %d were taken", taken, n)
		}
		if key := r.key(1); r.Forget(&key) {
			t.Error("another is taken")
		}
		time.Sleep(15 * time.Minute)
		if taken := r.forgetMany(1); taken != 1 {
			t.Error("none is taken when they are gone")
		}
		if left := objectsIn(r.cluster); left != 2 {
			t.Errorf("%d objects are left of 2 that nobody removed", left)
		}
	})
}
