package mooncake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Options are what New needs.
type Options struct {
	Engine Engine
	// Memory is the whole memory that the engine has registered, as this process has
	// it mapped.
	Memory []byte
	// Staging is the part of it that is the store's.
	Staging Range
	// Keys names chunks; nil: NamespaceKeys.
	Keys Keys
	// Replication is that of every put; pins come from the put.
	Replication Replication
	Log         *slog.Logger
	// Lease is how long the cluster's master leases what was asked for
	// (default_kv_lease_ttl); 0: 10s, as the master has it.
	Lease time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Store is a store.Store over a cluster.
type Store struct {
	cfg   Options
	calls sync.WaitGroup // transfers under way

	mu         sync.Mutex
	closed     bool
	staging    *staging
	namespaces []*namespace // by id - 1
	byDigest   map[[32]byte]store.NamespaceID
	puts       map[uint64]*openPut
	underway   map[string]struct{} // keys of puts that are open, or are being asked about or stored
	refs       map[uint64]Range
	lastID     uint64
	missOnce   map[chunk]struct{}
	owed       owed
	breaker    breaker
	fullUntil  time.Time
	stats      Stats
}

// namespace is an open namespace.
type namespace struct {
	id     store.NamespaceID
	spec   *kv.NamespaceSpec
	keys   Keyspace
	resets uint64
	// dirty: what is in the cluster is not to be used, it is to be removed first. No
	// removal before cleanFrom is the last.
	dirty     bool
	cleanFrom time.Time
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
	if cfg.Keys == nil {
		cfg.Keys = NamespaceKeys
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Lease <= 0 {
		cfg.Lease = defaultLease
	}
	if r := cfg.Staging; r.Offset > uint64(len(cfg.Memory)) || r.Bytes > uint64(len(cfg.Memory))-r.Offset {
		return nil, fmt.Errorf("mooncake: staging [%d, +%d) is not inside the engine's memory of %d bytes", r.Offset, r.Bytes, len(cfg.Memory))
	}
	return &Store{
		cfg: cfg, staging: newStaging(cfg.Staging), byDigest: map[[32]byte]store.NamespaceID{}, puts: map[uint64]*openPut{},
		underway: map[string]struct{}{}, refs: map[uint64]Range{}, missOnce: map[chunk]struct{}{},
		owed: owed{keys: map[string]*namespace{}},
	}, nil
}

// Close refuses further calls and waits for the transfers under way, which the
// engine bounds. The engine may be ended before, to make it quick.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
}

var errClosed = fmt.Errorf("%w: it is closed", store.ErrUnavailable)

// OpenNamespace implements store.Store.
func (s *Store) OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (store.Namespace, error) {
	if err := ctx.Err(); err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	if err := spec.Validate(); err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	keys, err := s.cfg.Keys(spec)
	if err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for g, group := range spec.Groups {
		if n := uint64(group.ShardBytes); n > math.MaxUint32 || rounded(n) > s.staging.bytes {
			return store.Namespace{}, fmt.Errorf("open namespace: %w: group %d has shards of %d bytes, the staging memory is %d", store.ErrShardTooLarge, g, n, s.staging.bytes)
		}
	}
	digest := spec.Digest()
	id, known := s.byDigest[digest]
	if !known {
		id = store.NamespaceID(len(s.namespaces) + 1)
		s.namespaces = append(s.namespaces, &namespace{id: id, spec: spec, keys: keys})
		s.byDigest[digest] = id
	}
	return store.Namespace{ID: id, ResetEpoch: s.namespaces[id-1].resets}, nil
}

// knownLocked returns an open namespace, reset or not.
func (s *Store) knownLocked(n store.Namespace) (*namespace, error) {
	if s.closed {
		return nil, errClosed
	}
	if n.ID == 0 || int(n.ID) > len(s.namespaces) {
		return nil, store.ErrStaleNamespace
	}
	return s.namespaces[n.ID-1], nil
}

// currentLocked returns a namespace that was not reset since it was opened.
func (s *Store) currentLocked(n store.Namespace) (*namespace, error) {
	ns, err := s.knownLocked(n)
	if err == nil && ns.resets != n.ResetEpoch {
		err = store.ErrStaleNamespace
	}
	return ns, err
}

// current is currentLocked for the beginning of a call.
func (s *Store) current(ctx context.Context, n store.Namespace) (*namespace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.currentLocked(n)
}

// has tells whether the namespace has a shard.
func (ns *namespace) has(group, shard uint32) bool {
	return int(group) < len(ns.keys.Prefixes) && int(shard) < len(ns.keys.Prefixes[group])
}

// key returns the key of a shard.
//
// REQUIRES: ns.has(group, shard).
func (ns *namespace) key(group, shard uint32, hash *kv.Hash) string {
	return kv.PoolKey(ns.keys.Prefixes[group][shard], hash[:ns.spec.HashBytes])
}

// shards returns how many shards a group's chunks have.
func (ns *namespace) shards(group uint32) int { return len(ns.keys.Prefixes[group]) }

// Segments implements store.Store.
func (s *Store) Segments() []store.Segment { return []store.Segment{memory(s.cfg.Memory)} }

// memory is the engine's memory, as a segment.
type memory []byte

// Data implements store.Segment.
func (m memory) Data() []byte { return m }

// noteLocked tells the breaker of a call's end, and counts the answers' codes.
func (s *Store) noteLocked(op string, answers []Answer, err error) error {
	if err == nil && op != "get" { // there it may be a key's holder: see transferBatch
		err = goneIn(op, answers)
	}
	for _, a := range answers {
		if code := a.Code(); code != 0 {
			s.stats.failed(code)
		}
	}
	// One question that was not answered in time is enough: the next would wait as
	// long. What was not asked, for want of a turn, says nothing.
	if errors.Is(err, store.ErrUnavailable) || op == "exist" && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrNoTurn) {
		if !s.breaker.open {
			s.cfg.Log.Warn("the Mooncake cluster does not answer", "call", op, "error", err)
		}
		s.breaker.failed(s.cfg.Now(), err)
	}
	return err
}

// exist asks for keys, in as many calls as it takes.
func (s *Store) exist(ctx context.Context, keys []string) ([]Answer, error) {
	answers := make([]Answer, 0, len(keys))
	for from := 0; from < len(keys); from += MaxKeys {
		part, err := s.cfg.Engine.Exist(ctx, keys[from:min(from+MaxKeys, len(keys))])
		s.mu.Lock()
		err = s.noteLocked("exist", part, err)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		answers = append(answers, part...)
	}
	return answers, nil
}
