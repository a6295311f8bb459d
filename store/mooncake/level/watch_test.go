package level_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// objectsIn counts the objects of chunks.
func objectsIn(cluster *mooncaketest.Cluster) (n int) {
	for _, key := range cluster.Keys() {
		if strings.Contains(key, "@group:") {
			n++
		}
	}
	return n
}

// TestSilentWhileIdle: a master that stops to answer is noticed though nobody asks for
// anything, and one that answers again, too.
func TestSilentWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		r.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Code: mooncake.CodeRPCFailed} })
		time.Sleep(3 * time.Second)
		if r.Stats().InService || r.Problem() == "" || r.Era() != 0 {
			t.Error("nobody has noticed")
		}
		r.engine.SetFault(nil)
		time.Sleep(6 * time.Second)
		if !r.Stats().InService {
			t.Error("it is not in service again")
		}
	})
}

// TestBeganAnewWhileIdle: so is one that was away for a moment only and has forgotten
// all, and what was known of it is known no more.
func TestBeganAnewWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newRig(t, cluster, level.Options{})
		time.Sleep(3 * time.Second)
		era := r.Era()
		time.Sleep(time.Minute)
		if r.Era() != era {
			t.Fatal("it began anew of itself")
		}
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Present)
		cluster.Forget()
		time.Sleep(3 * time.Second)
		if r.Era() == era || !r.Stats().InService {
			t.Errorf("era %d", r.Era())
		}
		r.expect(1, kv.Unknown)
		era = r.Era()
		time.Sleep(time.Minute)
		if r.Era() != era {
			t.Error("it began anew again")
		}
	})
}

// TestCanaryInAFullCluster: without room there is none, and nothing is concluded.
func TestCanaryInAFullCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(1), level.Options{})
		era := r.Era()
		time.Sleep(time.Minute)
		if r.Era() != era || !r.Stats().InService {
			t.Errorf("era %d, was %d", r.Era(), era)
		}
	})
}

// TestRenewed: what is used here is asked for, so that the cluster keeps it; of what
// has gone the owner is told.
func TestRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newRig(t, cluster, level.Options{})
		for i := range 3 {
			if err, _ := r.put(i, i); err != nil {
				t.Fatal(err)
			}
		}
		cluster.GiveLeases()
		key := slices.IndexFunc(cluster.Keys(), func(key string) bool { return strings.Contains(key, "shard:0") })
		if cluster.Leased(cluster.Keys()[key]) {
			t.Fatal("it has a lease")
		}
		var gone []disk.Key
		tell := func(key disk.Key) { gone = append(gone, key) }
		for i := range 3 {
			r.Renew(r.key(i), tell)
		}
		r.Renew(r.key(9), tell) // was never there
		synctest.Wait()
		for _, key := range cluster.Keys() {
			if strings.Contains(key, "shard:") && !cluster.Leased(key) {
				t.Errorf("%s has no lease", key)
			}
		}
		if s := r.Stats(); !slices.Equal(gone, []disk.Key{r.key(9)}) || s.Renewed != 4 || s.RenewedLate != 1 || r.engine.Calls("exist") > 4 {
			t.Errorf("gone: %v, %+v, %d questions", gone, s, r.engine.Calls("exist"))
		}
	})
}

// TestPins: what is pinned here is pinned softly there: nobody could end a hard pin.
func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newRig(t, cluster, level.Options{})
		for pin, want := range map[store.Pin]bool{store.PinNone: false, store.PinSoft: true, store.PinHard: true} {
			before := cluster.Keys()
			var o outcome
			if !r.Share(r.chunk(int(pin), int(pin)), pin, r.pieces(int(pin)), o.put) {
				t.Fatal("it was not taken")
			}
			synctest.Wait()
			for _, key := range cluster.Keys() {
				if slices.Contains(before, key) || !strings.Contains(key, "shard:") {
					continue
				}
				if how := cluster.How(key); how.SoftPin != want || how.HardPin {
					t.Errorf("pin %d is %+v there", pin, how)
				}
			}
		}
	})
}

// TestRemovedByAnOperator: where resets go to the cluster, so do removals of all that a
// model has: nothing is found there until nothing is left, and new chunks go there
// after that.
func TestRemovedByAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newRig(t, cluster, level.Options{ResetCluster: true})
		if !r.Removes() {
			t.Error("removals do not go there")
		}
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		cluster.GiveLeases()
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Present)
		r.RemoveAll(r.digest)
		for range 20 {
			if err := r.ask(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			r.expect(1, kv.Absent)
			time.Sleep(time.Second)
		}
		cluster.EndLeases()
		time.Sleep(20 * time.Second)
		if n := objectsIn(cluster); n != 0 {
			t.Errorf("%d objects are there", n)
		}
		if err, taken := r.put(2, 1); err != nil || !taken {
			t.Errorf("a put after it: %v, %v", err, taken)
		}
	})
}
