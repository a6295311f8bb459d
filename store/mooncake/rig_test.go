package mooncake_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// rig is a store on a cluster in memory, with a clock that stands still.
type rig struct {
	*mooncake.Store
	t       *testing.T
	cluster *mooncaketest.Cluster
	engine  *mooncaketest.Engine
	memory  []byte
	spec    *kv.NamespaceSpec
	ns      store.Namespace

	mu  sync.Mutex
	now time.Time
}

func newRig(t *testing.T, cluster *mooncaketest.Cluster, options mooncake.Options) *rig {
	t.Helper()
	r := &rig{t: t, cluster: cluster, memory: make([]byte, 2<<20), spec: storetest.Spec("model", 2), now: time.Unix(1, 0)}
	r.engine = cluster.NewEngine(r.memory)
	options.Engine, options.Memory, options.Log, options.Now = r.engine, r.memory, slog.New(slog.DiscardHandler), r.clock
	if options.Staging.Bytes == 0 {
		options.Staging = mooncake.Range{Offset: 100, Bytes: 1<<20 + 8192}
	}
	s, err := mooncake.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	r.Store = s
	r.ns = r.open(r.spec)
	return r
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func (r *rig) open(spec *kv.NamespaceSpec) store.Namespace {
	r.t.Helper()
	ns, err := r.OpenNamespace(r.t.Context(), spec)
	if err != nil {
		r.t.Fatal(err)
	}
	return ns
}

func hashOf(i int) (h kv.Hash) {
	copy(h[:], fmt.Sprintf("hash %d", i))
	return h
}

func shardOf(i int, shard uint32) []byte {
	return bytes.Repeat([]byte{byte(i), byte(shard) + 1, byte(i >> 8), 7}, 128)
}

// start asks for room for both shards of chunk i.
func (r *rig) start(i int) ([]store.PutGrant, error) {
	return r.PutStart(r.t.Context(), r.ns, store.PutOptions{}, []store.PutItem{{Hash: hashOf(i)}, {Hash: hashOf(i), Shard: 1}})
}

// put stores chunk i; it reports whether both shards were.
func (r *rig) put(i int) (bool, error) {
	grants, err := r.start(i)
	if err != nil {
		return false, err
	}
	var commits []store.PutCommit
	for shard, g := range grants {
		if g.Status == store.PutGranted {
			copy(r.memory[g.Place.Offset:], shardOf(i, uint32(shard)))
			commits = append(commits, r.commit(g))
		}
	}
	done, err := r.PutEnd(r.t.Context(), r.ns, commits)
	return err == nil && len(done) == 2 && !slices.Contains(done, false), err
}

// commit ends a granted put with what is in its memory.
func (r *rig) commit(g store.PutGrant) store.PutCommit {
	return store.PutCommit{Ticket: g.Ticket, Checksum: storetest.Sum(r.memory[g.Place.Offset:][:g.Place.Bytes])}
}

func (r *rig) mustPut(i int) {
	r.t.Helper()
	if ok, err := r.put(i); !ok || err != nil {
		r.t.Fatalf("put: %v, %v", ok, err)
	}
}

// get loads chunk i; it reports whether both shards were there. Bytes that are not
// those that were put fail the test.
func (r *rig) get(i int) (bool, error) {
	r.t.Helper()
	results, err := r.Get(r.t.Context(), r.ns, store.Lease{}, []store.GetItem{{Hash: hashOf(i)}, {Hash: hashOf(i), Shard: 1}})
	if err != nil {
		return false, err
	}
	whole := true
	for shard, g := range results {
		if g.Status != store.GetReady {
			whole = false
			continue
		}
		b := r.memory[g.Place.Offset:][:g.Place.Bytes]
		if !bytes.Equal(b, shardOf(i, uint32(shard))) || g.Checksum != storetest.Sum(b) || g.Tier != store.TierRemote {
			r.t.Errorf("chunk %d shard %d: other bytes", i, shard)
		}
		if err := r.Release(r.t.Context(), []uint64{g.Ref}); err != nil {
			r.t.Error(err)
		}
	}
	return whole, nil
}

func (r *rig) expect(i int, want bool) {
	r.t.Helper()
	if got, err := r.get(i); got != want || err != nil {
		r.t.Errorf("chunk %d: %v, %v; want %v", i, got, err, want)
	}
}

// settled checks that no memory is taken.
func (r *rig) settled() {
	r.t.Helper()
	if stats := r.Stats(); stats.StagingFree != stats.StagingBytes {
		r.t.Errorf("%d of %d bytes of staging are free", stats.StagingFree, stats.StagingBytes)
	}
}

func only(op string, f mooncaketest.Fault) func(string, []string) mooncaketest.Fault {
	return func(called string, _ []string) mooncaketest.Fault {
		if called == op {
			return f
		}
		return mooncaketest.Fault{}
	}
}
