package embedded

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// longestAwait bounds how long one call waits for a chunk.
const longestAwait = time.Second

// AwaitArrival returns when a chunk that a load waits for is not on its way any more,
// and after atMost, or longestAwait, at the latest. A load that asks after that is
// told what became of it.
func (m *Master) AwaitArrival(ctx context.Context, session Session, n store.Namespace, chunk store.ChunkKey, atMost time.Duration) error {
	over, err := m.overWhen(session, n, chunk)
	if err != nil || over == nil {
		return err
	}
	late := time.NewTimer(min(atMost, longestAwait))
	defer late.Stop()
	select {
	case <-over:
	case <-late.C:
	case <-ctx.Done():
	}
	return nil
}

// overWhen returns what is closed when a chunk is not on its way any more, nil if it
// is not now.
func (m *Master) overWhen(session Session, n store.Namespace, chunk store.ChunkKey) (<-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.sessionLocked(session); err != nil {
		return nil, err
	}
	if _, err := m.currentNamespaceLocked(n); err != nil {
		return nil, err
	}
	if m.lower == nil || !m.hasGroupLocked(n.ID, chunk.Group) {
		return nil, nil
	}
	rec, known := m.findLocked(n.ID, chunk.Group, &chunk.Hash)
	if !known || !m.comingLocked(rec) {
		return nil, nil
	}
	p := m.lower.coming[rec]
	if p.over == nil {
		p.over = make(chan struct{})
	}
	return p.over, nil
}
