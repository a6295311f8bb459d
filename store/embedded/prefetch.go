package embedded

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// Drain makes the store refuse puts, or take them again; it serves on.
func (m *Master) Drain(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = on
}

// SetFetcher names the slower tier that Prefetch asks.
func (m *Master) SetFetcher(f Fetcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fetch = f
}

// Prefetch asks the slower tier for chunks that are not in memory. ErrNoTier:
// there is none.
func (m *Master) Prefetch(ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	fetch, wanted, err := m.wanted(ns, keys)
	if err != nil {
		return 0, err
	}
	return fetch(ns, wanted), nil
}

// wanted returns those of the chunks that are not in memory.
func (m *Master) wanted(ns store.NamespaceID, keys []store.ChunkKey) (Fetcher, []store.ChunkKey, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.namespaceLocked(ns)
	if err != nil {
		return nil, nil, err
	}
	if m.fetch == nil {
		return nil, nil, fmt.Errorf("%w; set disk_dir", ErrNoTier)
	}
	var absent []store.ChunkKey
	for _, key := range keys {
		if int(key.Group) >= len(n.groups) {
			continue
		}
		if rec, ok := m.findLocked(ns, key.Group, &key.Hash); !ok || !m.live[rec].state.Whole() {
			absent = append(absent, key)
		}
	}
	return m.fetch, absent, nil
}
