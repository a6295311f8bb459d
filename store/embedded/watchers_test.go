package embedded

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// watchedKey is a chunk that a watcher asks for, and the answer it must get.
type watchedKey struct {
	hash kv.Hash
	want kv.Existence
}

// watchers are lookups that run beside a chaos' operations. They know only what
// holds at every moment: the anchors are there, ghosts are not.
type watchers struct {
	stop   chan struct{}
	wg     sync.WaitGroup
	gate   sync.RWMutex // held by a watcher for a look, and by who replaces the master
	master atomic.Pointer[Master]
	fault  atomic.Pointer[string]
}

// watch starts watchers for some of the runs: others have the processor for
// themselves.
func watch(c *chaos, seed uint64) *watchers {
	w := &watchers{stop: make(chan struct{})}
	w.master.Store(c.w.m)
	if seed%4 != 0 && !raceEnabled {
		return w
	}
	sp := c.spaces[0]
	name := sp.name.ID
	keys := make([]watchedKey, 0, 2*anchors)
	for n := range anchors {
		keys = append(keys, watchedKey{sp.hashes[n], kv.Present}, watchedKey{ghost(n), kv.Absent})
	}
	for i := range 2 {
		w.wg.Go(func() { w.run(name, keys, i == 0) })
	}
	return w
}

// run looks until it is stopped. One of the watchers asks for other things too.
func (w *watchers) run(name store.NamespaceID, keys []watchedKey, curious bool) {
	var changes []Change
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		default:
		}
		w.look(name, keys)
		if curious && n%16 == 0 {
			w.gate.RLock()
			m := w.master.Load()
			_ = m.Stats()
			_ = m.Namespaces()
			changes, _ = m.Changes(changes[:0], 0, 64)
			w.gate.RUnlock()
		}
		runtime.Gosched()
	}
}

// look is one lookup.
func (w *watchers) look(name store.NamespaceID, keys []watchedKey) {
	w.gate.RLock()
	defer w.gate.RUnlock()
	v := w.master.Load().View(name)
	defer v.Close()
	for i := range keys {
		if got := v.Exists(0, keys[i].hash); got != keys[i].want {
			fault := fmt.Sprintf("a lookup beside the operations: %x is %d, want %d", keys[i].hash[:4], got, keys[i].want)
			w.fault.CompareAndSwap(nil, &fault)
		}
	}
}

// pause keeps watchers off until the master has been replaced.
func (w *watchers) pause(c *chaos) (resume func()) {
	w.gate.Lock()
	return func() {
		w.master.Store(c.w.m)
		w.gate.Unlock()
	}
}

// stopWatchers ends them and reports what they have seen.
func (c *chaos) stopWatchers() {
	select {
	case <-c.watchers.stop:
		return
	default:
	}
	close(c.watchers.stop)
	c.watchers.wg.Wait()
	c.checkWatchers()
}

func (c *chaos) checkWatchers() {
	if fault := c.watchers.fault.Load(); fault != nil {
		c.t.Error(*fault)
	}
}
