package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

const chunkBytes = 1000

// fakeStore is a store of two namespaces. It writes down what it is told to do,
// and fails the test when it is told what the service should have refused.
type fakeStore struct {
	t      testing.TB
	specs  []*kv.NamespaceSpec
	states map[store.ChunkKey]embedded.ChunkState // of namespace 1
	said   []string
	fail   error  // of the next change
	heard  func() // called after each change
	usage  []embedded.Usage
	tags   []embedded.Usage
	tops   []embedded.Prefix
	gone   embedded.Removal
}

func spec(model string, hashBytes, groups int) *kv.NamespaceSpec {
	s := &kv.NamespaceSpec{Model: model, HashBytes: hashBytes, HashAlgorithm: "sha256", HashBlockTokens: 16, SchedulerBlockTokens: 16, TP: 1, PP: 1, PCP: 1, DCP: 1, RetentionTokens: -1}
	for range groups {
		s.Groups = append(s.Groups, kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: chunkBytes, Shards: 1})
	}
	return s
}

func newFake(t testing.TB) *fakeStore {
	return &fakeStore{t: t, specs: []*kv.NamespaceSpec{spec("a", 32, 1), spec("b", 16, 2)}, states: map[store.ChunkKey]embedded.ChunkState{}}
}

func (f *fakeStore) service() *Service {
	return New(Config{
		Store: f, Log: slog.New(slog.DiscardHandler),
		Stats: func() Stats { return Stats{Stats: embedded.Stats{OpenPuts: 3, Chunks: 7, Policy: "lru"}} },
		Settings: func() []config.Setting {
			return []config.Setting{{Key: "linger", Value: "1m", Origin: config.FromFlag}}
		},
	})
}

func (f *fakeStore) digest(id int) []byte {
	d := f.specs[id].Digest()
	return d[:]
}

func (f *fakeStore) say(format string, args ...any) error {
	f.said = append(f.said, fmt.Sprintf(format, args...))
	if f.heard != nil {
		f.heard()
	}
	err := f.fail
	f.fail = nil
	return err
}

func (f *fakeStore) check(ns store.NamespaceID, keys []store.ChunkKey) {
	if int(ns) >= len(f.specs) || len(keys) == 0 || len(keys) > batchKeys {
		f.t.Errorf("namespace %d, %d keys", ns, len(keys))
		return
	}
	for _, k := range keys {
		if int(k.Group) >= len(f.specs[ns].Groups) {
			f.t.Errorf("group %d", k.Group)
		}
	}
}

func (f *fakeStore) Namespaces() (all []embedded.NamespaceEntry) {
	for i, s := range f.specs {
		all = append(all, embedded.NamespaceEntry{ID: store.NamespaceID(i), Spec: s})
	}
	return all
}

func (f *fakeStore) Inspect(ns store.NamespaceID, groups []uint32, hashes []kv.Hash) ([]embedded.ChunkState, error) {
	out := make([]embedded.ChunkState, len(groups))
	for i := range out {
		if ns == 1 {
			out[i] = f.states[store.ChunkKey{Group: groups[i], Hash: hashes[i]}]
		}
	}
	return out, nil
}

func (f *fakeStore) UsageByNamespace() []embedded.Usage { return slices.Clone(f.usage) }
func (f *fakeStore) UsageByTag() []embedded.Usage       { return slices.Clone(f.tags) }
func (f *fakeStore) TopPrefixes(n int) []embedded.Prefix {
	return slices.Clone(f.tops[:min(n, len(f.tops))])
}

func (f *fakeStore) Evict(limit embedded.EvictLimit) (embedded.Removal, error) {
	return f.gone, f.say("evict %+v", limit)
}

func (f *fakeStore) Pin(ns store.NamespaceID, keys []store.ChunkKey, kind embedded.PinKind, ttl time.Duration) (embedded.PinResult, error) {
	f.check(ns, keys)
	if err := f.say("pin %d: %d keys kind %d for %v", ns, len(keys), kind, ttl); err != nil {
		return embedded.PinResult{}, err
	}
	return embedded.PinResult{Pinned: len(keys), Bytes: uint64(len(keys)) * chunkBytes}, nil
}

func (f *fakeStore) Unpin(ns store.NamespaceID, keys []store.ChunkKey) (embedded.PinResult, error) {
	f.check(ns, keys)
	return embedded.PinResult{Pinned: len(keys), Bytes: uint64(len(keys)) * chunkBytes}, f.say("unpin %d: %d keys", ns, len(keys))
}

func (f *fakeStore) PrefetchAll(_ context.Context, ns store.NamespaceID, keys []store.ChunkKey) (int, error) {
	f.check(ns, keys)
	return 1, f.say("prefetch %d: %d keys", ns, len(keys))
}

func (f *fakeStore) Remove(ctx context.Context, s embedded.Scope) (embedded.Removal, error) {
	ns, tag := -1, "-"
	if s.Namespace != nil {
		ns = int(*s.Namespace)
	}
	if s.SaltTag != nil {
		tag = *s.SaltTag
	}
	if ns < 0 && tag == "-" || ctx == nil {
		f.t.Errorf("removal of %+v", s)
	}
	return embedded.Removal{Chunks: 2, Bytes: 2 * chunkBytes, OnDisk: 7}, f.say("remove %d %s %d hashes chain %v everything %v", ns, tag, len(s.Hashes), s.Chain, s.Everything)
}

func (f *fakeStore) Reset(ns store.NamespaceID) error { return f.say("reset %d", ns) }

func (f *fakeStore) SetQuota(o embedded.Owner, bytes uint64) error {
	return f.say("quota %q %d: %d", o.Tag, o.Namespace, bytes)
}

func (f *fakeStore) SetDefaultTTL(ns store.NamespaceID, ttl time.Duration) error {
	return f.say("ttl %d: %v", ns, ttl)
}

func (f *fakeStore) Drain(on bool) { _ = f.say("drain %v", on) }

var _ Store = (*fakeStore)(nil)

// hashesOf returns n hashes of b bytes back to back, from the first on.
func hashesOf(first, n, b int) []byte {
	out := make([]byte, 0, n*b)
	for i := range n {
		h := make([]byte, b)
		h[0], h[1], h[2] = byte(first+i), byte((first+i)>>8), 1
		out = append(out, h...)
	}
	return out
}

// put makes chunks of namespace 1 known in a group.
func (f *fakeStore) put(group uint32, first, n int, state embedded.ChunkState) {
	blob, err := kv.NewHashBlob(hashesOf(first, n, 16), 16)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range n {
		f.states[store.ChunkKey{Group: group, Hash: blob.At(i)}] = state
	}
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
