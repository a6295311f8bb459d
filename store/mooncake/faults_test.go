package mooncake_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// TestFailedGets: whatever a key's get fails of, it is a miss, nothing is given out,
// and it is found again when all is well.
func TestFailedGets(t *testing.T) {
	for _, code := range []mooncake.Code{
		mooncake.CodeNotFound, mooncake.CodeNotReady, mooncake.CodeLeaseExpired, mooncake.CodeTransferFailed, mooncake.CodeInvalidParams, mooncake.CodeInternal, -801, -9999,
	} {
		t.Run(code.String(), func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
			r.mustPut(1)
			r.engine.SetFault(only("get", mooncaketest.Fault{Code: code, Torn: true}))
			r.expect(1, false)
			r.settled()
			if n := r.Stats().Codes[code]; n != 2 {
				t.Errorf("%d failures counted", n)
			}
			r.engine.SetFault(nil)
			r.expect(1, true)
			r.settled()
		})
	}
}

// TestOtherLength: an object of another length is none of ours.
func TestOtherLength(t *testing.T) {
	for name, n := range map[string]int{"shorter": 100, "longer": 1000} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
			r.mustPut(1)
			for _, key := range r.cluster.Keys() {
				r.cluster.Set(key, make([]byte, n))
			}
			r.expect(1, false)
			r.settled()
			if got := r.Stats().GetsOtherLength; got != 2 {
				t.Errorf("%d counted", got)
			}
		})
	}
}

// TestFull: a cluster without room voids the put, and is left alone for a while.
func TestFull(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(1024), mooncake.Options{})
	r.mustPut(1)
	if ok, err := r.put(2); ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	r.settled()
	if grants, err := r.start(2); err != nil || grants[0].Status != store.PutNoSpace || grants[1].Status != store.PutNoSpace {
		t.Errorf("%v, %v; want no space", grants, err)
	}
	if grants, err := r.start(1); err != nil || grants[0].Status != store.PutExists {
		t.Errorf("%v, %v; want exists", grants, err)
	}
	r.expect(1, true)
	if _, err := r.Remove(t.Context(), r.ns, []kv.Hash{hashOf(1)}); err != nil {
		t.Fatal(err)
	}
	r.pass(2 * time.Second)
	r.mustPut(2)
	r.expect(2, true)
	r.settled()
}

// TestStagingFull: without memory puts have no room and gets are misses.
func TestStagingFull(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{Staging: mooncake.Range{Bytes: 3 * 4096}})
	r.mustPut(1)
	grants, err := r.start(2)
	if err != nil || grants[1].Status != store.PutGranted {
		t.Fatal(grants, err)
	}
	more, err := r.start(3)
	if err != nil || more[0].Status != store.PutGranted || more[1].Status != store.PutNoSpace {
		t.Errorf("%v, %v", more, err)
	}
	r.expect(1, false)
	if err := r.PutRevoke(t.Context(), r.ns, []uint64{grants[0].Ticket, grants[1].Ticket, more[0].Ticket}); err != nil {
		t.Fatal(err)
	}
	r.settled()
	r.expect(1, true)
	large := storetest.Spec("large", 1)
	large.Groups[0].ShardBytes = 3*4096 + 1
	if _, err := r.OpenNamespace(t.Context(), large); !errors.Is(err, store.ErrShardTooLarge) {
		t.Errorf("a shard larger than the memory: %v", err)
	}
}

// TestMasterGone: calls fail as unavailable, at once and without asking, until a
// small question is answered.
func TestMasterGone(t *testing.T) {
	gone := map[string]mooncaketest.Fault{
		"by a code":  {Code: mooncake.CodeRPCFailed},
		"by timeout": {Code: mooncake.CodeRPCTimeout},
		"by error":   {Err: mooncaketest.ErrDown},
	}
	for name, fault := range gone {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
			r.mustPut(1)
			r.engine.SetFault(func(string, []string) mooncaketest.Fault { return fault })
			if _, err := r.put(2); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("put: %v, want ErrUnavailable", err)
			}
			if health := r.Health(); health.Ready || health.Reason == "" {
				t.Errorf("health %+v", health)
			}
			asked := r.engine.Calls("exist")
			for range 5 {
				if _, err := r.get(1); !errors.Is(err, store.ErrUnavailable) {
					t.Fatalf("get: %v, want ErrUnavailable", err)
				}
			}
			if r.engine.Calls("get") != 0 || r.engine.Calls("exist") != asked {
				t.Error("a master that did not answer was asked again at once")
			}
			r.pass(time.Minute)
			if _, err := r.get(1); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("get: %v, want ErrUnavailable", err)
			}
			if r.engine.Calls("get") != 0 || r.engine.Calls("exist") != asked+1 {
				t.Error("the probe was no small question")
			}
			r.engine.SetFault(nil)
			r.pass(time.Minute)
			r.expect(1, true)
			if stats := r.Stats(); stats.Outages != 1 || !r.Health().Ready {
				t.Errorf("%d outages, health %+v", stats.Outages, r.Health())
			}
			r.mustPut(2)
			r.settled()
		})
	}
}

// TestGoneInTransfer: a master that goes during a put or a get leaves nothing
// taken, and no shard counts as stored.
func TestGoneInTransfer(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	r.engine.SetFault(only("put", mooncaketest.Fault{Code: mooncake.CodeRPCFailed}))
	if ok, err := r.put(2); ok || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("put: %v, %v", ok, err)
	}
	r.pass(time.Minute)
	r.engine.SetFault(only("get", mooncaketest.Fault{Err: mooncaketest.ErrDown}))
	if ok, err := r.get(1); ok || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("get: %v, %v", ok, err)
	}
	r.settled()
}

// TestLeftBehind: a caller whose context ends is answered; its transfer keeps its
// memory until the engine is done with it, and gives it back then.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
		r.mustPut(1)
		grants, err := r.start(2)
		if err != nil {
			t.Fatal(err)
		}
		leave := make(chan struct{})
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			if op != "get" && op != "put" {
				return mooncaketest.Fault{}
			}
			return mooncaketest.Fault{Wait: func(context.Context) { <-leave }}
		})
		taken := func() uint64 { stats := r.Stats(); return stats.StagingBytes - stats.StagingFree }
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if _, err := r.Get(ctx, r.ns, store.Lease{}, []store.GetItem{{Hash: hashOf(1)}}); !errors.Is(err, context.Canceled) {
				t.Errorf("get: %v", err)
			}
		}()
		go func() {
			if _, err := r.PutEnd(ctx, r.ns, []store.PutCommit{r.commit(grants[0])}); !errors.Is(err, context.Canceled) {
				t.Errorf("put end: %v", err)
			}
		}()
		synctest.Wait() // both are in their transfers
		cancel()
		synctest.Wait() // both callers are answered
		if got := taken(); got != 3*4096 {
			t.Errorf("%d bytes of staging are taken, want those of a get, a put under way and one granted", got)
		}
		close(leave)
		synctest.Wait()
		if got := taken(); got != 4096 {
			t.Errorf("%d bytes of staging are taken, want those of the granted put", got)
		}
		r.Close()
		if _, err := r.start(9); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestResetDuringGet: what was removed meanwhile is not given out.
func TestResetDuringGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
		r.mustPut(1)
		leave := make(chan struct{})
		r.engine.SetFault(only("get", mooncaketest.Fault{Wait: func(context.Context) { <-leave }}))
		go func() {
			if _, err := r.get(1); !errors.Is(err, store.ErrStaleNamespace) {
				t.Errorf("get: %v, want ErrStaleNamespace", err)
			}
		}()
		synctest.Wait()
		if _, err := r.Reset(t.Context(), r.ns); err != nil {
			t.Error(err)
		}
		close(leave)
		synctest.Wait()
		r.settled()
	})
}

// injected checks that a call failed of nothing but what it was to fail of: the
// engine refuses calls that break its contract with other errors.
func (r *rig) injected(call string, err error) {
	r.t.Helper()
	if err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.As(err, new(*mooncake.Error)) {
		r.t.Errorf("%s: %v", call, err)
	}
}

// TestRandomFaults: users at once, of two nodes, over engines that fail as they
// like: no byte is wrong, no memory is lost, and all is well when the faults end.
func TestRandomFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	cluster := mooncaketest.NewCluster(64 << 10)
	codes := []mooncake.Code{
		mooncake.CodeNotFound, mooncake.CodeNotReady, mooncake.CodeLeaseExpired, mooncake.CodeTransferFailed, mooncake.CodeNoSpace, mooncake.CodeRPCFailed, mooncake.CodeInternal,
	}
	for node := range 2 {
		t.Run(fmt.Sprint("node ", node), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, cluster, mooncake.Options{Staging: mooncake.Range{Bytes: 24 * 4096}})
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, uint64(node)))
			r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
				mu.Lock()
				defer mu.Unlock()
				// Others' transfers begin meanwhile: the engine refuses those of one range.
				meanwhile := func(context.Context) { runtime.Gosched() }
				if random.IntN(3) > 0 {
					return mooncaketest.Fault{Wait: meanwhile}
				}
				f := mooncaketest.Fault{Code: codes[random.IntN(len(codes))], Torn: op == "get" || random.IntN(2) == 0, Wait: meanwhile}
				if spared := random.Uint64(); random.IntN(2) == 0 {
					f.Key = func(key string) bool { return (uint64(key[len(key)-1])^spared)&1 == 0 }
				}
				if random.IntN(10) == 0 {
					f = mooncaketest.Fault{Err: mooncaketest.ErrDown}
				}
				return f
			})
			var users sync.WaitGroup
			for u := range 4 {
				users.Go(func() {
					own := rand.New(rand.NewPCG(seed, uint64(100*node+u)))
					for range 300 {
						i := own.IntN(40)
						switch own.IntN(6) {
						case 0, 1:
							_, err := r.put(i)
							r.injected("put", err)
						case 2:
							_, err := r.Remove(t.Context(), r.ns, []kv.Hash{hashOf(i)})
							r.injected("remove", err)
						case 3:
							r.pass(200 * time.Millisecond)
						default:
							_, err := r.get(i)
							r.injected("get", err)
						}
					}
				})
			}
			users.Wait()
			r.settled()
			r.engine.SetFault(nil)
			r.pass(time.Minute)
			r.expect(1000+node, false)
			r.mustPut(1000 + node)
			r.expect(1000+node, true)
			if _, err := r.Remove(t.Context(), r.ns, []kv.Hash{hashOf(1000 + node)}); err != nil {
				t.Error(err)
			}
			r.expect(1000+node, false)
			r.settled()
		})
	}
}
