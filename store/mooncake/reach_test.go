package mooncake_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestHolderGone: a get that a node does not answer, which has the object on its
// disk, is a miss and no outage, for one object and for all of a call.
func TestHolderGone(t *testing.T) {
	for name, key := range map[string]func(string) bool{
		"one": func(key string) bool { return strings.Contains(key, "shard:0") }, "all": nil,
	} {
		for _, code := range []mooncake.Code{mooncake.CodeRPCFailed, mooncake.CodeRPCTimeout} {
			t.Run(fmt.Sprint(name, code), func(t *testing.T) {
				r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
				r.mustPut(1)
				r.engine.SetFault(only("get", mooncaketest.Fault{Code: code, Key: key}))
				r.expect(1, false)
				if stats := r.Stats(); stats.Outages != 0 || stats.Codes[code] == 0 || !r.Health().Ready {
					t.Errorf("%+v", stats)
				}
				r.settled()
				r.engine.SetFault(nil)
				r.expect(1, true)
			})
		}
	}
	t.Run("the master, too", func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
		r.mustPut(1)
		var gone atomic.Bool
		r.engine.SetFault(func(op string, keys []string) mooncaketest.Fault {
			if op == "get" {
				gone.Store(true)
			}
			if gone.Load() && (op == "get" || keys[0] == "mooncake-sidecar@nothing") {
				return mooncaketest.Fault{Code: mooncake.CodeRPCFailed}
			}
			return mooncaketest.Fault{}
		})
		if _, err := r.get(1); !errors.Is(err, store.ErrUnavailable) || r.Stats().Outages != 1 {
			t.Errorf("%v, %d outages", err, r.Stats().Outages)
		}
		r.settled()
	})
}

// TestImpatient: callers that had no turn say nothing of the master.
func TestImpatient(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	r.mustPut(1)
	noTurn := mooncaketest.Fault{Err: fmt.Errorf("%w: %w", mooncake.ErrNoTurn, context.DeadlineExceeded)}
	r.engine.SetFault(only("exist", noTurn))
	if _, err := r.start(2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if stats := r.Stats(); stats.Outages != 0 {
		t.Errorf("%d outages", stats.Outages)
	}
	r.engine.SetFault(nil)
	r.expect(1, true)
	r.settled()
}

// TestProbeLeft: a probe whose caller does not wait goes on, and ends the outage.
func TestProbeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
		r.mustPut(1)
		r.engine.SetFault(only("exist", mooncaketest.Fault{Err: mooncaketest.ErrDown}))
		if _, err := r.start(2); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		leave := make(chan struct{})
		r.engine.SetFault(only("exist", mooncaketest.Fault{Wait: func(context.Context) { <-leave }}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := r.Get(ctx, r.ns, store.Lease{}, []store.GetItem{{Hash: hashOf(1)}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		close(leave)
		synctest.Wait()
		if !r.Health().Ready {
			t.Errorf("%+v", r.Health())
		}
		r.expect(1, true)
		r.settled()
	})
}
