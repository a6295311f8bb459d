package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Existence answers whether chunks are there, all their shards: kv.Present or
// kv.Absent. A chunk that is there gets a lease of the cluster's. A chunk whose
// load failed is absent once.
func (s *Store) Existence(ctx context.Context, n store.Namespace, chunks []store.ChunkKey) ([]kv.Existence, error) {
	ns, err := s.current(ctx, n)
	if err == nil {
		err = s.reach(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("existence: %w", err)
	}
	found := make([]kv.Existence, len(chunks))
	if s.isDirty(ns) {
		return found, nil
	}
	var keys []string
	var owners []int
	for i := range chunks {
		c := &chunks[i]
		if int(c.Group) >= len(ns.keys.Prefixes) || s.missNow(chunk{n.ID, c.Group, c.Hash}) {
			continue
		}
		found[i] = kv.Present
		for shard := range uint32(ns.shards(c.Group)) {
			keys, owners = append(keys, ns.key(c.Group, shard, &c.Hash)), append(owners, i)
		}
	}
	answers, err := s.exist(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("existence: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, a := range answers {
		if a != 1 || s.deniedLocked(ns, keys[k]) {
			found[owners[k]] = kv.Absent
		}
	}
	return found, nil
}

// missNow tells whether a chunk's load failed since somebody asked for it.
func (s *Store) missNow(c chunk) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, miss := s.missOnce[c]
	delete(s.missOnce, c)
	return miss
}

// ReportFailed implements store.Store.
func (s *Store) ReportFailed(ctx context.Context, n store.Namespace, chunks []store.FailedChunk) error {
	ns, err := s.current(ctx, n)
	if err != nil {
		return fmt.Errorf("report failed: %w", err)
	}
	var corrupt []string
	s.mu.Lock()
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
	s.mu.Unlock()
	if len(corrupt) == 0 {
		return nil
	}
	if _, err = s.remove(ctx, ns, corrupt); err != nil {
		return fmt.Errorf("report failed: %w", err)
	}
	return nil
}

// chunkKeys returns the keys of a chunk's shards.
func (ns *namespace) chunkKeys(group uint32, hash *kv.Hash) []string {
	keys := make([]string, ns.shards(group))
	for shard := range keys {
		keys[shard] = ns.key(group, uint32(shard), hash)
	}
	return keys
}

// Remove removes chunks by their hash, in every group, and returns how many shards
// there were. What could not be removed is not found here any more, and is removed
// when it can be.
func (s *Store) Remove(ctx context.Context, n store.Namespace, hashes []kv.Hash) (shards int, err error) {
	ns, err := s.current(ctx, n)
	if err != nil {
		return 0, fmt.Errorf("remove: %w", err)
	}
	var keys []string
	for i := range hashes {
		for g := range uint32(len(ns.spec.Groups)) {
			keys = append(keys, ns.chunkKeys(g, &hashes[i])...)
		}
	}
	if shards, err = s.remove(ctx, ns, keys); err != nil {
		return shards, fmt.Errorf("remove: %w", err)
	}
	return shards, nil
}

// Health returns what is known of the way to the cluster, without asking anybody.
func (s *Store) Health() Health {
	health := s.cfg.Engine.Health()
	s.mu.Lock()
	defer s.mu.Unlock()
	if health.Ready && s.breaker.open {
		health.Ready, health.Reason = false, s.breaker.why.Error()
	}
	return health
}
