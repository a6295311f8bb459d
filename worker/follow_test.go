package worker_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// offering is a store that has references ready for those who follow an engine.
type offering struct {
	*storetest.FakeStore
	mu       sync.Mutex
	followed map[string]bool
}

func (o *offering) Follow(engine string, shards []int, held int) (stop func()) {
	what := fmt.Sprint(engine, shards, held)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.followed[what] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.followed, what)
	}
}

// TestAStoreHearsWhatARankLoads: the shards of the rank, as long as its session.
func TestAStoreHearsWhatARankLoads(t *testing.T) {
	o := &offering{followed: map[string]bool{}}
	r := newRig(t, func(cfg *worker.Config) {
		o.FakeStore, _ = cfg.Store.(*storetest.FakeStore)
		cfg.Store = o
	})
	e := r.shared(2, 1, false)
	e.send(&connector.Ping{Type: connector.TypePing})
	expect[*connector.Pong](e.peer)
	o.mu.Lock()
	want := fmt.Sprint("lookup-engine", []int{sharedTP / 2}, sharedTP/2)
	if !o.followed[want] || len(o.followed) != 1 {
		t.Errorf("followed is %v, want %s", o.followed, want)
	}
	o.mu.Unlock()
	r.close()
	if len(o.followed) != 0 {
		t.Errorf("after the session %v is followed", o.followed)
	}
}
