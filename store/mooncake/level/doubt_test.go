package level_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestToldAndNotThere: a master that does not tell what it evicts is found out by the first
// load, and relied on for less.
func TestToldAndNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		r.tellChunk(1, true)
		r.tellChunk(2, true)
		time.Sleep(time.Minute)
		if r.get(1, 0) == nil {
			t.Fatal("it was there")
		}
		time.Sleep(time.Second) // no event of a removal comes
		r.expect(2, kv.Unknown)
		r.tellChunk(1, true)
		key := r.key(1)
		r.MissOnce(&key) // its bytes were no good
		r.expect(1, kv.Absent)
		time.Sleep(time.Second)
		r.expect(1, kv.Unknown)
		if r.forgotten(level.ForgottenContradicted) != 1 {
			t.Errorf("%+v", r.Stats().Events)
		}
		r.tellChunk(3, true)
		time.Sleep(29 * time.Second)
		r.expect(3, kv.Present)
		time.Sleep(2 * time.Second)
		r.expect(3, kv.Unknown)
		time.Sleep(10 * time.Minute) // nothing was wrong since
		r.tellChunk(3, true)
		time.Sleep(9 * time.Minute)
		r.expect(3, kv.Present)
		if err := r.ask(t.Context(), 3); err != nil { // a question finds out as well
			t.Fatal(err)
		}
		r.expect(3, kv.Absent)
		time.Sleep(time.Second)
		if r.forgotten(level.ForgottenContradicted) != 2 {
			t.Errorf("%+v", r.Stats().Events)
		}
	})
}

// TestToldTooLate: a removal of which an answer, or a load, knows before its event has
// come is no contradiction; nor is it found meanwhile.
func TestToldTooLate(t *testing.T) {
	for name, find := range map[string]func(r *teller){
		"by a question": func(r *teller) {
			if err := r.ask(r.t.Context(), 1); err != nil {
				r.t.Fatal(err)
			}
		},
		"by a load": func(r *teller) {
			if r.get(1, 0) == nil {
				r.t.Fatal("it was there")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
				r.tellChunk(1, true)
				r.tellChunk(2, true)
				time.Sleep(time.Minute)
				find(r)
				if r.exists(1) == kv.Present {
					t.Error("it is found though it was not there")
				}
				time.Sleep(50 * time.Millisecond)
				r.tellChunk(1, false)
				time.Sleep(time.Second)
				r.expect(2, kv.Present)
				if n := r.forgotten(level.ForgottenContradicted); n != 0 {
					t.Errorf("%d contradictions", n)
				}
				r.tellChunk(1, true) // again
				r.expect(1, kv.Present)
			})
		})
	}
}

// TestManyToldAndNotThere: so many removals that nobody has told of are none that are told
// late.
func TestManyToldAndNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		chunks := make([]int, 100)
		for i := range chunks {
			chunks[i] = i
			r.tellChunk(i, true)
		}
		r.tellChunk(200, true)
		time.Sleep(time.Second)
		if err := r.ask(t.Context(), chunks...); err != nil {
			t.Fatal(err)
		}
		r.expect(200, kv.Unknown)
		if n := r.forgotten(level.ForgottenContradicted); n != 1 {
			t.Errorf("%d contradictions", n)
		}
	})
}

// TestVoidMeanwhile: an answer that was on its way when a chunk turned out to be bad does not
// bring it back, with events or without.
func TestVoidMeanwhile(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *mooncaketest.Cluster) *rig{
		"events":    func(t *testing.T, c *mooncaketest.Cluster) *rig { return newTeller(t, c, level.Options{}).rig },
		"no events": func(t *testing.T, c *mooncaketest.Cluster) *rig { return newRig(t, c, level.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := mooncaketest.NewCluster(0)
				other := newRig(t, cluster, level.Options{})
				if err, _ := other.put(1, 0); err != nil {
					t.Fatal(err)
				}
				r := open(t, cluster)
				key, done := r.key(1), false
				r.engine.SetFault(func(is string, _ []string) mooncaketest.Fault {
					if is == "exist" && !done {
						done = true
						r.MissOnce(&key)
					}
					return mooncaketest.Fault{}
				})
				if err := r.ask(t.Context(), 1); err != nil || !done {
					t.Fatal(err, done)
				}
				r.expect(1, kv.Absent)
				time.Sleep(2 * time.Second)
				if err := r.ask(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				r.expect(1, kv.Present)
			})
		})
	}
}

// TestVoidAndAllForgotten: nor does it when all that was told has been forgotten meanwhile.
func TestVoidAndAllForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		other := newRig(t, cluster, level.Options{})
		if err, _ := other.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r := newTeller(t, cluster, level.Options{Absent: 100 * time.Millisecond})
		key, done := r.key(1), false
		r.engine.SetFault(func(is string, _ []string) mooncaketest.Fault {
			if is == "exist" && !done {
				done = true
				r.MissOnce(&key)
				time.Sleep(200 * time.Millisecond) // it is not absent any more
				r.Hear(nil)                        // malformed
			}
			return mooncaketest.Fault{}
		})
		if err := r.ask(t.Context(), 1); err != nil || !done {
			t.Fatal(err, done)
		}
		r.expect(1, kv.Unknown)
	})
}

// TestToldAndRemovedWithAll: what is removed with all of a namespace while it is loaded is
// no contradiction.
func TestToldAndRemovedWithAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{ResetCluster: true})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r.tellChunk(1, true)
		time.Sleep(time.Minute)
		done := false
		r.engine.SetFault(func(is string, _ []string) mooncaketest.Fault {
			if is == "get" && !done {
				done = true
				r.RemoveAll(r.digest)
				return mooncaketest.Fault{Code: -704}
			}
			return mooncaketest.Fault{}
		})
		if r.get(1, 0) == nil || !done {
			t.Fatal("it was there", done)
		}
		time.Sleep(time.Second)
		if n := r.forgotten(level.ForgottenContradicted); n != 0 {
			t.Errorf("%d contradictions", n)
		}
	})
}

// TestTrustIsOfWhatWasWrong: what is told next is believed for half as long as what turned
// out to be wrong had been, whatever else is in doubt.
func TestTrustIsOfWhatWasWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		r.tellChunk(1, true)
		time.Sleep(time.Minute)
		r.tellChunk(2, true)
		time.Sleep(time.Second)
		if r.get(1, 0) == nil {
			t.Fatal("it was there")
		}
		time.Sleep(200 * time.Millisecond)
		if r.get(2, 0) == nil { // its removal may still be told
			t.Fatal("it was there")
		}
		time.Sleep(100 * time.Millisecond)
		if n := r.forgotten(level.ForgottenContradicted); n != 1 {
			t.Fatalf("%d contradictions", n)
		}
		r.tellChunk(3, true)
		time.Sleep(29 * time.Second)
		r.expect(3, kv.Present)
	})
}
