package level

import (
	"context"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// renewKeys is how many keys one question renews at most: lookups wait behind it.
const renewKeys = 512

// renewing is a chunk that is used here, for which the cluster is to be asked.
type renewing struct {
	space *space
	key   disk.Key
	gone  func(disk.Key)
}

// Renew implements embedded.Cluster. With too many waiting one is passed over: it is
// used again, or not worth much.
func (l *Level) Renew(key disk.Key, gone func(disk.Key)) {
	s := l.spaceOf(key.Namespace)
	if s == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.inService() && len(l.renewals.waiting) < maxWaiting {
		l.renewals.add(&renewing{space: s, key: key, gone: gone}, 0)
	}
}

// runRenewals asks for what waits until ctx ends.
func (l *Level) runRenewals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.renewals.more:
		}
		keys := 0
		l.mu.Lock()
		batch := l.renewals.take(func(first, next *renewing, _ int) bool {
			if keys == 0 {
				keys = first.space.shards(uint32(first.key.Group))
			}
			keys += next.space.shards(uint32(next.key.Group))
			return first.space == next.space && keys <= renewKeys
		})
		l.mu.Unlock()
		if len(batch) > 0 {
			l.renew(ctx, batch)
		}
	}
}

// renew asks for chunks of one namespace. The question leases them, which is what
// the cluster goes by when it evicts.
func (l *Level) renew(ctx context.Context, batch []*renewing) {
	s := batch[0].space
	if l.spaceOf(batch[0].key.Namespace) != s || !l.inService() { // it was reset
		return
	}
	chunks := make([]store.ChunkKey, len(batch))
	for i, r := range batch {
		chunks[i] = store.ChunkKey{Group: uint32(r.key.Group), Hash: r.key.Hash}
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	found, err := l.askSome(ctx, s, chunks)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.stats.Renewed += uint64(len(batch))
	l.mu.Unlock()
	for i, r := range batch {
		if found[i] == kv.Present {
			continue
		}
		l.mu.Lock()
		l.stats.RenewedLate++
		l.mu.Unlock()
		r.gone(r.key)
	}
}
