package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// FakeStore is a store.Store in the process's memory. It never evicts: full is
// full.
type FakeStore struct {
	data []byte

	mu        sync.Mutex
	hook      func(call string) error
	specs     []*kv.NamespaceSpec // by id - 1
	epochs    []uint64
	names     map[[32]byte]store.NamespaceID
	chunks    map[chunkKey]*chunk
	tickets   map[uint64]*put
	refs      map[uint64]chunkKey
	free      map[int][]uint64 // offsets by length
	next      uint64           // first byte never used
	lastID    uint64
	reported  []store.FailedChunk
	loading   int // Gets still answered GetLoading
	late      func(kv.Hash) bool
	awaited   []store.ChunkKey
	await     func(ctx context.Context)
	leases    []store.Lease
	puts      []store.PutItem
	options   []store.PutOptions // by PutStart
	revoked   int
	published int
}

type chunkKey struct {
	ns    store.NamespaceID
	group uint32
	hash  kv.Hash
}

type chunk struct {
	shards map[uint32]*shard
}

type shard struct {
	place    store.Place
	checksum uint32
	complete bool
}

type put struct {
	key   chunkKey
	shard uint32
	epoch uint64
}

var _ store.Store = (*FakeStore)(nil)

// NewFakeStore returns an empty store of that many bytes.
func NewFakeStore(bytes int) *FakeStore {
	return &FakeStore{
		data: make([]byte, bytes), names: map[[32]byte]store.NamespaceID{}, chunks: map[chunkKey]*chunk{},
		tickets: map[uint64]*put{}, refs: map[uint64]chunkKey{}, free: map[int][]uint64{},
	}
}

// SetHook makes every call ask hook first, with the method's name, outside any
// lock; an error is the call's. Nil takes the hook away.
func (f *FakeStore) SetHook(hook func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// enter begins a call; the caller unlocks when there is no error.
func (f *FakeStore) enter(ctx context.Context, call string) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		if err := hook(call); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	f.mu.Lock()
	return nil
}

func (f *FakeStore) spec(ns store.Namespace) (*kv.NamespaceSpec, error) {
	i := int(ns.ID) - 1
	if i < 0 || i >= len(f.specs) || f.specs[i] == nil {
		return nil, store.ErrStaleNamespace
	}
	return f.specs[i], nil
}

// current is spec for calls that a reset makes stale.
func (f *FakeStore) current(ns store.Namespace) (*kv.NamespaceSpec, error) {
	spec, err := f.spec(ns)
	if err == nil && f.epochs[ns.ID-1] != ns.ResetEpoch {
		err = store.ErrStaleNamespace
	}
	return spec, err
}

// OpenNamespace implements store.Store.
func (f *FakeStore) OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (store.Namespace, error) {
	if err := f.enter(ctx, "OpenNamespace"); err != nil {
		return store.Namespace{}, err
	}
	defer f.mu.Unlock()
	digest := spec.Digest()
	id, ok := f.names[digest]
	if !ok {
		f.specs = append(f.specs, spec)
		f.epochs = append(f.epochs, 0)
		id = store.NamespaceID(len(f.specs))
		f.names[digest] = id
	}
	return store.Namespace{ID: id, ResetEpoch: f.epochs[id-1]}, nil
}

// PutStart implements store.Store.
func (f *FakeStore) PutStart(ctx context.Context, ns store.Namespace, opts store.PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	if err := f.enter(ctx, "PutStart"); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	spec, err := f.current(ns)
	if err != nil {
		return nil, err
	}
	f.options = append(f.options, opts)
	grants := make([]store.PutGrant, len(items))
	for i, it := range items {
		f.puts = append(f.puts, it)
		key := chunkKey{ns.ID, it.Group, it.Hash}
		c := f.chunks[key]
		if c == nil {
			c = &chunk{shards: map[uint32]*shard{}}
			f.chunks[key] = c
		}
		if s := c.shards[it.Shard]; s != nil {
			grants[i].Status = store.PutUnderway
			if s.complete {
				grants[i].Status = store.PutExists
			}
			continue
		}
		bytes := spec.Groups[it.Group].ShardBytes
		at, ok := f.allocate(bytes)
		if !ok {
			grants[i].Status = store.PutNoSpace
			continue
		}
		f.lastID++
		place := store.Place{Offset: at, Bytes: uint32(bytes)}
		c.shards[it.Shard] = &shard{place: place}
		f.tickets[f.lastID] = &put{key: key, shard: it.Shard, epoch: f.epochs[ns.ID-1]}
		grants[i] = store.PutGrant{Status: store.PutGranted, Ticket: f.lastID, Place: place}
	}
	return grants, nil
}

func (f *FakeStore) allocate(bytes int) (at uint64, ok bool) {
	if list := f.free[bytes]; len(list) > 0 {
		f.free[bytes] = list[:len(list)-1]
		return list[len(list)-1], true
	}
	if f.next+uint64(bytes) > uint64(len(f.data)) {
		return 0, false
	}
	at = f.next
	f.next += uint64(bytes)
	return at, true
}

func (f *FakeStore) drop(key chunkKey, number uint32) {
	c := f.chunks[key]
	if c == nil || c.shards[number] == nil {
		return
	}
	place := c.shards[number].place
	f.free[int(place.Bytes)] = append(f.free[int(place.Bytes)], place.Offset)
	delete(c.shards, number)
}

// PutEnd implements store.Store.
func (f *FakeStore) PutEnd(ctx context.Context, ns store.Namespace, commits []store.PutCommit) ([]bool, error) {
	if err := f.enter(ctx, "PutEnd"); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	if _, err := f.spec(ns); err != nil {
		return nil, err
	}
	done := make([]bool, len(commits))
	for i, c := range commits {
		p := f.tickets[c.Ticket]
		if p == nil {
			continue
		}
		delete(f.tickets, c.Ticket)
		if p.epoch != f.epochs[ns.ID-1] {
			f.drop(p.key, p.shard)
			continue
		}
		s := f.chunks[p.key].shards[p.shard]
		s.checksum, s.complete = c.Checksum, true
		done[i] = true
		f.published++
	}
	return done, nil
}

// PutRevoke implements store.Store.
func (f *FakeStore) PutRevoke(ctx context.Context, _ store.Namespace, tickets []uint64) error {
	if err := f.enter(ctx, "PutRevoke"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	for _, t := range tickets {
		if p := f.tickets[t]; p != nil {
			delete(f.tickets, t)
			f.drop(p.key, p.shard)
			f.revoked++
		}
	}
	return nil
}

// Get implements store.Store.
func (f *FakeStore) Get(ctx context.Context, ns store.Namespace, lease store.Lease, items []store.GetItem) ([]store.GetResult, error) {
	if err := f.enter(ctx, "Get"); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	spec, err := f.current(ns)
	if err != nil {
		return nil, err
	}
	f.leases = append(f.leases, lease)
	loading := f.loading > 0
	if loading {
		f.loading--
	}
	results := make([]store.GetResult, len(items))
	for i, it := range items {
		key := chunkKey{ns.ID, it.Group, it.Hash}
		results[i].Status = store.GetAbsent
		if !f.completeLocked(key, spec) {
			continue
		}
		if loading || f.late != nil && f.late(it.Hash) {
			results[i].Status = store.GetLoading
			continue
		}
		s := f.chunks[key].shards[it.Shard]
		f.lastID++
		f.refs[f.lastID] = key
		results[i] = store.GetResult{Status: store.GetReady, Ref: f.lastID, Place: s.place, Checksum: s.checksum}
	}
	return results, nil
}

func (f *FakeStore) completeLocked(key chunkKey, spec *kv.NamespaceSpec) bool {
	c := f.chunks[key]
	if c == nil || int(key.group) >= len(spec.Groups) {
		return false
	}
	n := 0
	for _, s := range c.shards {
		if s.complete {
			n++
		}
	}
	return n == spec.Groups[key.group].Shards
}

// AwaitArrival implements store.Store. What is late does not come by itself, so that it
// waits for the whole time.
func (f *FakeStore) AwaitArrival(ctx context.Context, ns store.Namespace, chunk store.ChunkKey, atMost time.Duration) error {
	if err := f.enter(ctx, "AwaitArrival"); err != nil {
		return err
	}
	f.awaited = append(f.awaited, chunk)
	loading, await := f.loading > 0 || f.late != nil && f.late(chunk.Hash), f.await
	f.mu.Unlock()
	switch {
	case !loading:
		return nil
	case await != nil:
		await(ctx)
		return nil
	}
	late := time.NewTimer(atMost)
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release implements store.Store.
func (f *FakeStore) Release(ctx context.Context, refs []uint64) error {
	if err := f.enter(ctx, "Release"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	for _, r := range refs {
		delete(f.refs, r)
	}
	return nil
}

// ReportFailed implements store.Store.
func (f *FakeStore) ReportFailed(ctx context.Context, ns store.Namespace, chunks []store.FailedChunk) error {
	if err := f.enter(ctx, "ReportFailed"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	if _, err := f.current(ns); err != nil {
		return err
	}
	for _, c := range chunks {
		f.reported = append(f.reported, c)
		if key := (chunkKey{ns.ID, c.Group, c.Hash}); c.Corrupt && f.chunks[key] != nil {
			for number := range f.chunks[key].shards {
				f.drop(key, number)
			}
			delete(f.chunks, key)
		}
	}
	return nil
}

// Segments implements store.Store.
func (f *FakeStore) Segments() []store.Segment { return []store.Segment{segment(f.data)} }

type segment []byte

func (s segment) Data() []byte { return s }
