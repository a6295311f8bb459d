package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Part is the shards of a chunk that are asked for. The zero Part is all of them.
type Part struct {
	some  bool
	shard int // the one, or -1 for none
}

// OneShard is one shard of a chunk, and NoShard none.
func OneShard(shard int) Part { return Part{some: true, shard: shard} }

// NoShard: the chunk is not asked for.
func NoShard() Part { return OneShard(-1) }

func (p Part) of(prefixes []string) []string {
	switch {
	case !p.some:
		return prefixes
	case p.shard < 0 || p.shard >= len(prefixes):
		return nil
	}
	return prefixes[p.shard : p.shard+1]
}

// Existence answers whether chunks are there, all their shards: kv.Present or
// kv.Absent. A chunk that is there gets a lease of the cluster's.
func (c *Client) Existence(ctx context.Context, n store.Namespace, chunks []store.ChunkKey) ([]kv.Existence, error) {
	return c.PartsExist(ctx, n, chunks, nil)
}

// PartsExist is Existence of a part of each chunk. One that is not asked for is
// kv.Unknown, unless it is to be removed.
func (c *Client) PartsExist(ctx context.Context, n store.Namespace, chunks []store.ChunkKey, parts []Part) ([]kv.Existence, error) {
	ns, err := c.current(ctx, n)
	if err == nil {
		err = c.reach(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("existence: %w", err)
	}
	found := make([]kv.Existence, len(chunks))
	if c.isDirty(ns) {
		return found, nil
	}
	keys, owners := ns.keysOf(chunks, parts)
	for _, i := range owners {
		found[i] = kv.Present
	}
	answers, err := c.exist(ctx, keys)
	c.mu.Lock()
	defer c.mu.Unlock()
	ns.seen.add(keys, answers)
	c.leasedLocked(n)
	if err != nil {
		return nil, fmt.Errorf("existence: %w", err)
	}
	for k, a := range answers {
		if of := &chunks[owners[k]]; a != 1 || c.deniedLocked(ns, of.Group, &of.Hash, keys[k]) {
			found[owners[k]] = kv.Absent
		}
	}
	for i := range parts {
		switch {
		case !parts[i].some || !ns.has(chunks[i].Group, 0):
		case c.anyDeniedLocked(ns, &chunks[i]):
			found[i] = kv.Absent
		case parts[i].shard < 0:
			found[i] = kv.Unknown
		}
	}
	return found, nil
}

// anyDeniedLocked tells whether a shard of a chunk is not to be used.
func (c *Client) anyDeniedLocked(ns *namespace, chunk *store.ChunkKey) bool {
	if ns.dirty || len(c.owed.keys)+len(c.owed.waiting) == 0 {
		return ns.dirty
	}
	for _, key := range ns.chunkKeys(chunk.Group, &chunk.Hash) {
		if c.deniedLocked(ns, chunk.Group, &chunk.Hash, key) {
			return true
		}
	}
	return false
}

// Existence is the client's, but that a chunk whose load failed is absent once.
func (s *Store) Existence(ctx context.Context, n store.Namespace, chunks []store.ChunkKey) ([]kv.Existence, error) {
	found, err := s.client.Existence(ctx, n, chunks)
	for i := range found {
		if s.missNow(chunk{n.ID, chunks[i].Group, chunks[i].Hash}) {
			found[i] = kv.Absent
		}
	}
	return found, err
}

// missNow tells whether a chunk's load failed since somebody asked for it.
func (s *Store) missNow(c chunk) bool {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	_, miss := s.missOnce[c]
	delete(s.missOnce, c)
	return miss
}

// ReportFailed implements store.Store.
func (s *Store) ReportFailed(ctx context.Context, n store.Namespace, chunks []store.FailedChunk) error {
	ns, err := s.client.current(ctx, n)
	if err != nil {
		return fmt.Errorf("report failed: %w", err)
	}
	corrupt := &doomed{ns: ns}
	s.client.mu.Lock()
	for i := range chunks {
		c := &chunks[i]
		switch {
		case int(c.Group) >= len(ns.keys.Prefixes):
		case c.Corrupt:
			corrupt.add(c.Group, &c.Hash)
		case len(s.missOnce) < maxMissOnce:
			s.missOnce[chunk{n.ID, c.Group, c.Hash}] = struct{}{}
		}
	}
	s.client.mu.Unlock()
	if len(corrupt.keys) == 0 {
		return nil
	}
	if _, err = s.client.remove(ctx, corrupt); err != nil {
		return fmt.Errorf("report failed: %w", err)
	}
	return nil
}
