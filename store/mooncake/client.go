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

// ClientOptions are what NewClient needs.
type ClientOptions struct {
	Engine Engine
	// Memory is the whole memory that the engine has registered, as this process has
	// it mapped.
	Memory []byte
	// Keys names chunks; nil: NamespaceKeys.
	Keys Keys
	// Replication is that of every put; pins come from the put.
	Replication Replication
	Log         *slog.Logger
	// Canary is a piece of the memory that never changes hands, a few bytes that are no
	// secret: what Beat puts. Empty: nothing.
	Canary Range
	// Lease is how long the cluster's master leases what was asked for
	// (default_kv_lease_ttl); 0: DefaultLease.
	Lease time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Client reaches the chunks of a cluster, by namespace and place in memory. It
// names their objects, knows what an answer means and when not to ask, and what is
// owed. Whose the places are is its caller's affair: Store has some of its own,
// package level those of the node's own store.
type Client struct {
	cfg   ClientOptions
	calls sync.WaitGroup // transfers and probes under way
	// canary is Beat's.
	canary canary

	mu         sync.Mutex
	closed     bool
	namespaces []*namespace // by id - 1
	byDigest   map[[32]byte]store.NamespaceID
	named      named
	owed       owed
	breaker    breaker
	fullUntil  time.Time
	// straysUntil: by then the engine has made the questions that were given up.
	straysUntil time.Time
	stats       Stats
}

// namespace is an open namespace.
type namespace struct {
	id     store.NamespaceID
	spec   *kv.NamespaceSpec
	keys   Keyspace
	resets uint64
	// dirty: what is in the cluster is not to be used, it is to be removed first. soils
	// counts how often that began. No removal before cleanFrom is the last; it is zero
	// until the cluster has answered one.
	dirty     bool
	told      bool // that others keep it so
	soils     uint64
	cleanFrom time.Time
	seen      seen
}

// NewClient returns a client. The engine is the caller's, who runs and ends it.
func NewClient(cfg ClientOptions) *Client {
	if cfg.Keys == nil {
		cfg.Keys = NamespaceKeys
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Lease <= 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Client{cfg: cfg, byDigest: map[[32]byte]store.NamespaceID{}, named: named{}, owed: owed{keys: map[string]*namespace{}}}
}

// Close refuses further calls and waits for the transfers under way, which the
// engine bounds. The engine may be ended before, to make it quick.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
}

var errClosed = fmt.Errorf("%w: it is closed", store.ErrUnavailable)

// OpenNamespace makes the namespace known, or finds it.
func (c *Client) OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (store.Namespace, error) {
	if err := ctx.Err(); err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	if err := spec.Validate(); err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	keys, err := c.cfg.Keys(spec)
	if err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	for g, group := range spec.Groups {
		if uint64(group.ShardBytes) > math.MaxUint32 {
			return store.Namespace{}, fmt.Errorf("open namespace: %w: group %d has shards of %d bytes", store.ErrShardTooLarge, g, group.ShardBytes)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	digest := spec.Digest()
	id, known := c.byDigest[digest]
	if !known {
		id = store.NamespaceID(len(c.namespaces) + 1)
		c.namespaces = append(c.namespaces, &namespace{id: id, spec: spec, keys: keys})
		c.byDigest[digest] = id
		c.named.add(c.namespaces[id-1])
	}
	return store.Namespace{ID: id, ResetEpoch: c.namespaces[id-1].resets}, nil
}

// knownLocked returns an open namespace, reset or not.
func (c *Client) knownLocked(n store.Namespace) (*namespace, error) {
	if c.closed {
		return nil, errClosed
	}
	if n.ID == 0 || int(n.ID) > len(c.namespaces) {
		return nil, store.ErrStaleNamespace
	}
	return c.namespaces[n.ID-1], nil
}

// currentLocked returns a namespace that was not reset since it was opened.
func (c *Client) currentLocked(n store.Namespace) (*namespace, error) {
	ns, err := c.knownLocked(n)
	if err == nil && ns.resets != n.ResetEpoch {
		err = store.ErrStaleNamespace
	}
	return ns, err
}

// current is currentLocked for the beginning of a call.
func (c *Client) current(ctx context.Context, n store.Namespace) (*namespace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.currentLocked(n)
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

// chunkKeys returns the keys of a chunk's shards.
func (ns *namespace) chunkKeys(group uint32, hash *kv.Hash) []string {
	keys := make([]string, ns.shards(group))
	for shard := range keys {
		keys[shard] = ns.key(group, uint32(shard), hash)
	}
	return keys
}

// keysOf returns the keys of shards of chunks, and which chunk each is of; those of
// unknown groups have none. parts says which shards; nil: all. The keys are pieces of
// one string: a question names thousands.
func (ns *namespace) keysOf(chunks []store.ChunkKey, parts []Part) (keys []string, owners []int) {
	count, bytes := 0, 0
	each := func(do func(i int, prefix string)) {
		for i := range chunks {
			if int(chunks[i].Group) >= len(ns.keys.Prefixes) {
				continue
			}
			prefixes := ns.keys.Prefixes[chunks[i].Group]
			if parts != nil {
				prefixes = parts[i].of(prefixes)
			}
			for _, prefix := range prefixes {
				do(i, prefix)
			}
		}
	}
	hashBytes := ns.spec.HashBytes
	each(func(_ int, prefix string) {
		count++
		bytes += kv.PoolKeyBytes(prefix, hashBytes)
	})
	text := make([]byte, 0, bytes)
	each(func(i int, prefix string) { text = kv.AppendPoolKey(text, prefix, chunks[i].Hash[:hashBytes]) })
	all := string(text)
	keys, owners = make([]string, 0, count), make([]int, 0, count)
	each(func(i int, prefix string) {
		n := kv.PoolKeyBytes(prefix, hashBytes)
		keys, owners = append(keys, all[:n]), append(owners, i)
		all = all[n:]
	})
	return keys, owners
}

// noteLocked tells the breaker of a call's end, and counts the answers' codes.
func (c *Client) noteLocked(op string, answers []Answer, err error) error {
	if err == nil && op != "get" { // there it may be a key's holder: see Get
		err = goneIn(op, answers)
	}
	for _, a := range answers {
		if code := a.Code(); code != 0 {
			c.stats.failed(code)
		}
	}
	// One question that was not answered in time is enough: the next would wait as
	// long. What was not asked, for want of a turn, says nothing.
	if errors.Is(err, store.ErrUnavailable) || op == "exist" && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrNoTurn) {
		if !c.breaker.open {
			c.cfg.Log.Warn("the Mooncake cluster does not answer", "call", op, "error", err)
		}
		c.breaker.failed(c.cfg.Now(), err)
	}
	return err
}

// exist asks for keys, in as many calls as it takes.
func (c *Client) exist(ctx context.Context, keys []string) ([]Answer, error) {
	answers := make([]Answer, 0, len(keys))
	for from := 0; from < len(keys); from += MaxKeys {
		part, err := c.cfg.Engine.Exist(ctx, keys[from:min(from+MaxKeys, len(keys))])
		c.mu.Lock()
		if err != nil && !errors.Is(err, ErrNoTurn) {
			c.straysUntil = c.cfg.Now().Add(MaxQuestion)
		}
		err = c.noteLocked("exist", part, err)
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		answers = append(answers, part...)
	}
	return answers, nil
}

// Health returns what is known of the way to the cluster, without asking anybody.
func (c *Client) Health() Health {
	health := c.cfg.Engine.Health()
	c.mu.Lock()
	defer c.mu.Unlock()
	if health.Ready && c.breaker.open {
		health.Ready, health.Reason = false, c.breaker.why.Error()
	}
	return health
}

// Stats returns what was counted.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statsLocked()
}
