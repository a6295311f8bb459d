package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Options are what New needs.
type Options struct {
	ClientOptions
	// Staging is the part of the memory that is the store's.
	Staging Range
}

// Store is a store.Store over a cluster: a Client with places of its own, from
// which shards are put and into which they are got.
type Store struct {
	client *Client

	// Under client.mu:
	staging  *staging
	puts     map[uint64]*openPut
	underway map[string]struct{} // keys of puts that are open, or are being asked about or stored
	refs     map[uint64]Range
	lastID   uint64
	missOnce map[chunk]struct{}
}

// chunk names a chunk of an open namespace.
type chunk struct {
	ns    store.NamespaceID
	group uint32
	hash  kv.Hash
}

// maxMissOnce bounds the failed chunks that are remembered for one miss each.
const maxMissOnce = 1 << 16

var _ store.Store = (*Store)(nil)

// New returns a store. The engine is the caller's, who runs and ends it.
func New(cfg Options) (*Store, error) {
	if r := cfg.Staging; r.Offset > uint64(len(cfg.Memory)) || r.Bytes > uint64(len(cfg.Memory))-r.Offset {
		return nil, fmt.Errorf("mooncake: staging [%d, +%d) is not inside the engine's memory of %d bytes", r.Offset, r.Bytes, len(cfg.Memory))
	}
	return &Store{
		client: NewClient(cfg.ClientOptions), staging: newStaging(cfg.Staging), puts: map[uint64]*openPut{},
		underway: map[string]struct{}{}, refs: map[uint64]Range{}, missOnce: map[chunk]struct{}{},
	}, nil
}

// Close refuses further calls and waits for the transfers under way, which the
// engine bounds. The engine may be ended before, to make it quick.
func (s *Store) Close() { s.client.Close() }

// OpenNamespace implements store.Store.
func (s *Store) OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (store.Namespace, error) {
	for g, group := range spec.Groups {
		if n := uint64(group.ShardBytes); rounded(n) > s.staging.bytes {
			return store.Namespace{}, fmt.Errorf("open namespace: %w: group %d has shards of %d bytes, the staging memory is %d", store.ErrShardTooLarge, g, n, s.staging.bytes)
		}
	}
	return s.client.OpenNamespace(ctx, spec)
}

// Segments implements store.Store.
func (s *Store) Segments() []store.Segment { return []store.Segment{memory(s.client.cfg.Memory)} }

// memory is the engine's memory, as a segment.
type memory []byte

// Data implements store.Segment.
func (m memory) Data() []byte { return m }

// Health returns what is known of the way to the cluster, without asking anybody.
func (s *Store) Health() Health { return s.client.Health() }

// Remove removes chunks; see Client.Remove.
func (s *Store) Remove(ctx context.Context, n store.Namespace, hashes []kv.Hash) (shards int, err error) {
	return s.client.Remove(ctx, n, hashes)
}

// Reset removes all chunks of the namespace; see Client.Reset.
func (s *Store) Reset(ctx context.Context, n store.Namespace) (shards int, err error) {
	return s.client.Reset(ctx, n)
}

// Stats returns what was counted.
func (s *Store) Stats() Stats {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	stats := s.client.statsLocked()
	stats.StagingBytes, stats.StagingFree = s.staging.bytes, s.staging.freeBytes
	return stats
}
