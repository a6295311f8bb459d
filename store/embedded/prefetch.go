package embedded

import (
	"context"
	"fmt"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store"
)

// Drain makes the store refuse puts, or take them again; it serves on.
func (m *Master) Drain(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = on
}

const (
	// prefetchStep is how many chunks are looked at under one hold of the lock.
	prefetchStep = 64
	// prefetchAsk is for how many chunks the cluster is asked at a time: what it says
	// is known for a while only.
	prefetchAsk = 512
)

// Prefetch begins to bring chunks up that only the disk has, or the cluster as far as
// is known, as far as they come as soon as those that a lookup is promised: nothing
// is evicted for what can't come. It returns how many it has begun. ErrNoTier: there
// is neither.
func (m *Master) Prefetch(ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	begun, _, _, err = m.prefetch(ns, keys)
	return begun, err
}

// PrefetchAll is Prefetch of one chunk after the other, at the pace of what is below;
// the cluster is asked what it has. It ends when the last is begun, ctx ends, or
// nothing comes any more.
func (m *Master) PrefetchAll(ctx context.Context, ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	for step := range slices.Chunk(keys, prefetchAsk) {
		_ = m.Ask(ctx, ns, step) // what can't be asked for does not come
		n, err := m.prefetchPaced(ctx, ns, step)
		begun += n
		if err != nil {
			return begun, err
		}
	}
	_, err = m.Prefetch(ns, nil) // for its errors
	return begun, err
}

func (m *Master) prefetchPaced(ctx context.Context, ns store.NamespaceID, keys []store.ChunkKey) (begun int, err error) {
	for {
		var read <-chan struct{}
		if m.disk() != nil {
			read = m.lower.tier.ReadEvent() // before it is looked how much may be read
		}
		n, left, came, err := m.prefetch(ns, keys)
		begun += n
		disk := m.disk()
		stuck := disk != nil && !disk.Serves() && (came == nil || m.lower.cluster == nil)
		if keys = left; err != nil || len(keys) == 0 || stuck {
			return begun, err
		}
		select {
		case <-read:
		case <-came:
		case <-ctx.Done():
			return begun, ctx.Err()
		}
	}
}

// arrivalLocked returns a channel that is closed when the next promotion ends, nil when
// none is under way.
func (m *Master) arrivalLocked() <-chan struct{} {
	if len(m.lower.coming) == 0 {
		return nil
	}
	if m.lower.came == nil {
		m.lower.came = make(chan struct{})
	}
	return m.lower.came
}

// prefetch returns the chunks that there is no time for at present, and what their
// turn may come with, see prefetchSome.
func (m *Master) prefetch(ns store.NamespaceID, keys []store.ChunkKey) (begun int, left []store.ChunkKey, came <-chan struct{}, err error) {
	for len(keys) > 0 {
		step := keys[:min(prefetchStep, len(keys))]
		n, done, came, err := m.prefetchSome(ns, step)
		begun += n
		keys = keys[done:]
		if err != nil || done < len(step) {
			return begun, keys, came, err
		}
	}
	_, _, _, err = m.prefetchSome(ns, nil) // for its errors
	return begun, nil, nil, err
}

// prefetchSome returns how many it has begun to bring, and with how many it is
// done. Where it stops before the last, came is the next arrival, those included that
// it has begun; nil: nothing comes, and the chunk waits for the disk alone.
func (m *Master) prefetchSome(ns store.NamespaceID, keys []store.ChunkKey) (begun, done int, came <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespaceLocked(ns)
	if err != nil {
		return 0, 0, nil, err
	}
	if m.lower == nil {
		return 0, 0, nil, fmt.Errorf("%w; set disk_dir, or store mooncake", ErrNoTier)
	}
	m.timeLocked()
	room := m.fetchRoomLocked()
	for i := range keys {
		if int(keys[i].Group) >= len(n.groups) {
			continue
		}
		if _, known := m.findLocked(ns, keys[i].Group, &keys[i].Hash); known || len(m.undeclared) > 0 {
			continue
		}
		p := &promotion{key: m.diskKey(ns, keys[i].Group, &keys[i].Hash)}
		sources, count := m.lower.sources()
		for _, p.from = range sources[:count] {
			found, there := p.from.Offers(&p.key)
			if !there {
				continue
			}
			size := n.groups[keys[i].Group].wholeBytes()
			if !m.comesSoonLocked(p.from, found.Bytes, size, room) {
				return begun, i, m.arrivalLocked(), nil
			}
			if _, ok := m.promoteLocked(p, ns, &keys[i], found); ok {
				begun++
				room -= min(room, size)
			}
			break
		}
	}
	return begun, len(keys), nil, nil
}

// comesSoonLocked tells whether what is below brings a chunk as soon as it would one
// that a lookup was promised; size is what it takes in memory.
func (m *Master) comesSoonLocked(from Lower, bytes, size, room uint64) bool {
	if m.isCluster(from) {
		return size <= room && from.CanFetch() || len(m.lower.coming) == 0 // nothing to wait for
	}
	return m.lower.tier.HasTimeFor(bytes)
}

// fetchRoomLocked is how much of the cluster may be on its way at a time: what a
// lookup may be promised, less what is.
func (m *Master) fetchRoomLocked() uint64 {
	if m.lower.cluster == nil {
		return 0
	}
	room := m.promiseBytes()
	for _, p := range m.lower.coming {
		room -= min(room, p.size)
	}
	return room
}
