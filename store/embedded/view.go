package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// View answers the probes of one lookup on a state of the index that does not
// change meanwhile. It holds the master's read lock: close it soon.
type View struct {
	m      *Master
	ns     store.NamespaceID
	missed []uint32 // records that this lookup was told are absent, once
}

// View begins a lookup in the namespace.
func (m *Master) View(ns store.NamespaceID) *View {
	m.mu.RLock()
	return &View{m: m, ns: ns}
}

// Exists tells whether every shard of a chunk can be loaded. A chunk whose load
// has failed is absent to the next lookup that meets it, and only to that one.
func (v *View) Exists(group int, hash kv.Hash) kv.Existence {
	rec, ok := v.m.findLocked(v.ns, uint32(group), &hash)
	if !ok || v.m.live[rec].state != liveActive {
		return kv.Absent
	}
	if v.m.live[rec].missOnce {
		v.missed = append(v.missed, rec)
		return kv.Absent
	}
	return kv.Present
}

// Close ends the lookup.
func (v *View) Close() {
	v.m.mu.RUnlock()
	if len(v.missed) == 0 {
		return
	}
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	for _, rec := range v.missed {
		v.m.live[rec].missOnce = false
	}
}
