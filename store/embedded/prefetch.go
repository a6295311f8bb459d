package embedded

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// Drain makes the store refuse puts, or take them again; it serves on.
func (m *Master) Drain(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = on
}

// prefetchStep is how many chunks are looked at under one hold of the lock.
const prefetchStep = 64

// Prefetch begins to bring chunks up that only the disk has, as far as it brings
// them as soon as it would those that a lookup is promised: nothing is evicted for
// what can't come. It returns how many it has begun. ErrNoTier: there is no disk.
func (m *Master) Prefetch(ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	begun, _, err = m.prefetch(ns, keys)
	return begun, err
}

// PrefetchAll is Prefetch of one chunk after the other, at the disk's pace. It ends
// when the last is begun, ctx ends, or the disk is out of service.
func (m *Master) PrefetchAll(ctx context.Context, ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	for {
		var read <-chan struct{}
		if m.disk() != nil {
			read = m.lower.tier.ReadEvent() // before it is looked how much may be read
		}
		n, left, err := m.prefetch(ns, keys)
		begun += n
		if keys = left; err != nil || len(keys) == 0 || !m.lower.tier.Serves() {
			return begun, err
		}
		select {
		case <-read:
		case <-ctx.Done():
			return begun, ctx.Err()
		}
	}
}

// prefetch returns the chunks that the disk has no time for at present.
func (m *Master) prefetch(ns store.NamespaceID, keys []store.ChunkKey) (begun int, left []store.ChunkKey, err error) {
	for len(keys) > 0 {
		step := keys[:min(prefetchStep, len(keys))]
		n, done, err := m.prefetchSome(ns, step)
		begun += n
		keys = keys[done:]
		if err != nil || done < len(step) {
			return begun, keys, err
		}
	}
	_, _, err = m.prefetchSome(ns, nil) // for its errors
	return begun, nil, err
}

// prefetchSome returns how many it has begun to bring, and with how many it is
// done.
func (m *Master) prefetchSome(ns store.NamespaceID, keys []store.ChunkKey) (begun, done int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespaceLocked(ns)
	if err != nil {
		return 0, 0, err
	}
	if m.disk() == nil {
		return 0, 0, fmt.Errorf("%w; set disk_dir", ErrNoTier)
	}
	m.timeLocked()
	for i := range keys {
		if int(keys[i].Group) >= len(n.groups) {
			continue
		}
		if _, known := m.findLocked(ns, keys[i].Group, &keys[i].Hash); known || len(m.undeclared) > 0 {
			continue
		}
		p := &promotion{key: m.diskKey(ns, keys[i].Group, &keys[i].Hash), from: m.lower.tier}
		found, there := m.lower.tier.Look(&p.key)
		if !there {
			continue
		}
		if !m.lower.tier.HasTimeFor(found.Bytes) {
			return begun, i, nil
		}
		if _, ok := m.promoteLocked(p, ns, &keys[i], found); ok {
			begun++
		}
	}
	return begun, len(keys), nil
}
