package embedded

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// A load that waits for a chunk goes on when that has come, or not come, and when its
// time is over; for what is not on its way nobody waits.
func TestAnArrivalEndsTheWait(t *testing.T) {
	const read, long = 100 * time.Millisecond, 500 * time.Millisecond
	first := store.ChunkKey{Hash: testHash(0)} // long out of memory, as are the next
	for _, c := range []struct {
		name   string
		chunk  store.ChunkKey
		ask    bool          // what a load asks for first
		fails  bool          // the disk
		gives  time.Duration // up, 0: not
		atMost time.Duration
		took   time.Duration
		then   store.GetStatus
	}{
		{"it comes", first, true, false, 0, long, read, store.GetReady},
		{"it is lost", first, true, true, 0, long, read, store.GetAbsent},
		{"the time is over", first, true, false, 0, read / 4, read / 4, store.GetLoading},
		{"the caller has gone", first, true, false, read / 2, long, read / 2, store.GetLoading},
		{"nobody has asked for it", first, false, false, 0, long, 0, store.GetLoading},
		{"it is there", store.ChunkKey{Hash: testHash(199)}, false, false, 0, long, 0, store.GetReady},
		{"unknown", store.ChunkKey{Hash: testHash(1 << 20)}, true, false, 0, long, 0, store.GetAbsent},
		{"of no group", store.ChunkKey{Group: 9, Hash: testHash(0)}, true, false, 0, long, 0, store.GetAbsent},
		{"for ever", first, true, false, 0, time.Hour, read, store.GetReady},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s, ns := prefetchWorld(t)
				d.dir.SetFault(func(call disktest.Call) (f disktest.Fault) {
					if call.Op == disktest.Read {
						f.Hang = read
						if c.fails {
							f.Err = errors.New("a bad disk")
						}
					}
					return f
				})
				get := func() store.GetStatus {
					t.Helper()
					d.now = time.Now()
					got, err := d.m.Get(s, ns, store.Lease{}, []store.GetItem{{Group: c.chunk.Group, Hash: c.chunk.Hash}})
					if err != nil {
						t.Fatal(err)
					}
					return got[0].Status
				}
				if c.ask {
					get()
				}
				ctx := t.Context()
				if c.gives > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.gives)
					defer cancel()
				}
				begun := time.Now()
				if err := d.m.AwaitArrival(ctx, s, ns, c.chunk, c.atMost); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
				if got := get(); got != c.then {
					t.Errorf("the load is told %v, want %v", got, c.then)
				}
				time.Sleep(time.Second)
				d.m.validate(t)
				d.unmount()
			})
		})
	}
}

// What is too far away to be waited for in one call is asked about again.
func TestNoCallWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		d.slowReads(longestAwait + longestAwait/2)
		chunk := store.ChunkKey{Hash: testHash(0)}
		if got, err := d.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: chunk.Hash}}); err != nil || got[0].Status != store.GetLoading {
			t.Fatal(got, err)
		}
		begun := time.Now()
		if err := d.m.AwaitArrival(t.Context(), s, ns, chunk, time.Hour); err != nil || time.Since(begun) != longestAwait {
			t.Errorf("%v after %s, want %s", err, time.Since(begun), longestAwait)
		}
		d.slowReads(0)
		time.Sleep(longestAwait)
		d.unmount()
	})
}

// All that wait for a chunk are told; who may not ask is told that.
func TestWhoMayAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		d.slowReads(time.Second / 10)
		chunk := store.ChunkKey{Hash: kv.Hash(testHash(0))}
		if _, err := d.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: chunk.Hash}}); err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 3)
		for range cap(told) {
			go func() { told <- d.m.AwaitArrival(t.Context(), s, ns, chunk, longestAwait) }()
		}
		begun := time.Now()
		for range cap(told) {
			if err := <-told; err != nil || time.Since(begun) != time.Second/10 {
				t.Errorf("%v after %s", err, time.Since(begun))
			}
		}
		if err := d.m.AwaitArrival(t.Context(), Session{Client: 77}, ns, chunk, time.Hour); !errors.Is(err, ErrUnknownClient) {
			t.Errorf("a stranger: %v", err)
		}
		if err := d.m.AwaitArrival(t.Context(), s, store.Namespace{ID: ns.ID, ResetEpoch: ns.ResetEpoch + 1}, chunk, time.Hour); !errors.Is(err, store.ErrStaleNamespace) {
			t.Errorf("of another generation: %v", err)
		}
		d.unmount()
	})
}
