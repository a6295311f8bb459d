package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Existence answers whether chunks are there, all their shards: kv.Present or
// kv.Absent. A chunk that is there gets a lease of the cluster's.
func (c *Client) Existence(ctx context.Context, n store.Namespace, chunks []store.ChunkKey) ([]kv.Existence, error) {
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
	keys, owners := ns.keysOf(chunks)
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
		if a != 1 || c.deniedLocked(ns, keys[k]) {
			found[owners[k]] = kv.Absent
		}
	}
	return found, nil
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
	var corrupt []string
	s.client.mu.Lock()
	for i := range chunks {
		c := &chunks[i]
		switch {
		case int(c.Group) >= len(ns.keys.Prefixes):
		case c.Corrupt:
			corrupt = append(corrupt, ns.chunkKeys(c.Group, &c.Hash)...)
		case len(s.missOnce) < maxMissOnce:
			s.missOnce[chunk{n.ID, c.Group, c.Hash}] = struct{}{}
		}
	}
	s.client.mu.Unlock()
	if len(corrupt) == 0 {
		return nil
	}
	if _, err = s.client.remove(ctx, ns, corrupt); err != nil {
		return fmt.Errorf("report failed: %w", err)
	}
	return nil
}
