package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestStore checks the behaviour that users of a store rely on. newStore returns
// an empty store with room for at least a MiB, ready for calls; what must be
// closed is registered with t.Cleanup.
func TestStore(t *testing.T, newStore func(t *testing.T) store.Store) {
	for name, check := range map[string]func(*testing.T, *user){
		"a chunk comes back as it was put":        roundTrip,
		"a chunk is there only when it is whole":  wholeChunks,
		"a put that exists is not granted again":  existing,
		"a put under way is told from a stored":   underway,
		"a revoked put leaves nothing":            revoked,
		"a put that has ended is not revoked":     revokedLate,
		"a put in progress can't be read":         inProgress,
		"an unknown reference is ignored":         unknownRefs,
		"an unknown ticket publishes nothing":     unknownTickets,
		"a corrupt chunk is dropped":              corrupt,
		"an unknown namespace is stale":           staleNamespace,
		"namespaces do not see each other":        twoNamespaces,
		"opening a namespace again is harmless":   openAgain,
		"what is not on its way is not awaited":   nothingComes,
		"a call whose context is done fails":      doneContext,
		"many users at once":                      parallel,
		"references of one chunk are independent": independentRefs,
	} {
		t.Run(name, func(t *testing.T) {
			u := &user{t: t, s: newStore(t), spec: Spec("model", 2)}
			u.ns = u.open(u.spec)
			check(t, u)
		})
	}
}

// Spec returns a namespace of one group, whose chunks have that many shards of
// 512 bytes.
func Spec(model string, shards int) *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: model, Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256", HashBytes: 32,
		HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1, TP: shards, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 512, Shards: shards}},
	}
}

// Sum is the checksum of shards.
func Sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// user is a store with its calls, failing the test on errors.
type user struct {
	t    *testing.T
	s    store.Store
	spec *kv.NamespaceSpec
	ns   store.Namespace
}

func hashOf(i int) (h kv.Hash) {
	copy(h[:], fmt.Sprintf("hash %d", i))
	return h
}

func shardOf(i int, number uint32) []byte {
	return bytes.Repeat([]byte{byte(i), byte(number) + 1, byte(i >> 8), 7}, 128)
}

func (u *user) open(spec *kv.NamespaceSpec) store.Namespace {
	u.t.Helper()
	ns, err := u.s.OpenNamespace(context.Background(), spec)
	if err != nil {
		u.t.Fatal(err)
	}
	return ns
}

// start asks for room for one shard.
func (u *user) start(i int, number uint32) store.PutGrant {
	u.t.Helper()
	item := store.PutItem{Hash: hashOf(i), Shard: number, Depth: uint32(i)}
	if i > 0 {
		item.Parent = hashOf(i - 1)
	}
	grants, err := u.s.PutStart(context.Background(), u.ns, store.PutOptions{}, []store.PutItem{item})
	if err != nil || len(grants) != 1 {
		u.t.Fatalf("put start: %v, %v", grants, err)
	}
	return grants[0]
}

// put stores one shard.
func (u *user) put(i int, number uint32) {
	u.t.Helper()
	g := u.start(i, number)
	if g.Status != store.PutGranted {
		u.t.Fatalf("chunk %d shard %d: status %d, want granted", i, number, g.Status)
	}
	copy(u.memory(g.Place), shardOf(i, number))
	if !u.end(g.Ticket, Sum(shardOf(i, number))) {
		u.t.Fatalf("chunk %d shard %d: not published", i, number)
	}
}

func (u *user) end(ticket uint64, sum uint32) bool {
	u.t.Helper()
	done, err := u.s.PutEnd(context.Background(), u.ns, []store.PutCommit{{Ticket: ticket, Checksum: sum}})
	if err != nil || len(done) != 1 {
		u.t.Fatalf("put end: %v, %v", done, err)
	}
	return done[0]
}

func (u *user) memory(p store.Place) []byte {
	u.t.Helper()
	if p.Bytes != uint32(u.spec.Groups[0].ShardBytes) {
		u.t.Fatalf("a place of %d bytes", p.Bytes)
	}
	return u.s.Segments()[p.Segment].Data()[p.Offset:][:p.Bytes]
}

func (u *user) get(i int, number uint32) store.GetResult {
	u.t.Helper()
	results, err := u.s.Get(context.Background(), u.ns, store.Lease{}, []store.GetItem{{Hash: hashOf(i), Shard: number}})
	if err != nil || len(results) != 1 {
		u.t.Fatalf("get: %v, %v", results, err)
	}
	return results[0]
}

// expect checks that a shard can be read, or is absent.
func (u *user) expect(i int, number uint32, there bool) {
	u.t.Helper()
	r := u.get(i, number)
	if !there {
		if r.Status != store.GetAbsent {
			u.t.Errorf("chunk %d shard %d: status %d, want absent", i, number, r.Status)
		}
		return
	}
	if r.Status != store.GetReady {
		u.t.Errorf("chunk %d shard %d: status %d, want ready", i, number, r.Status)
		return
	}
	if got := u.memory(r.Place); !bytes.Equal(got, shardOf(i, number)) || r.Checksum != Sum(got) {
		u.t.Errorf("chunk %d shard %d: other bytes", i, number)
	}
	u.release(r.Ref)
}

func (u *user) release(refs ...uint64) {
	u.t.Helper()
	if err := u.s.Release(context.Background(), refs); err != nil {
		u.t.Fatal(err)
	}
}

func roundTrip(_ *testing.T, u *user) {
	for i := range 10 {
		u.put(i, 0)
		u.put(i, 1)
	}
	for i := range 10 {
		u.expect(i, 0, true)
		u.expect(i, 1, true)
	}
	u.expect(10, 0, false)
}

func wholeChunks(_ *testing.T, u *user) {
	u.put(0, 1)
	u.expect(0, 1, false)
	u.put(0, 0)
	u.expect(0, 1, true)
}

func underway(t *testing.T, u *user) {
	g := u.start(0, 0)
	if again := u.start(0, 0); again.Status != store.PutUnderway {
		t.Errorf("status %d, want underway", again.Status)
	}
	copy(u.memory(g.Place), shardOf(0, 0))
	u.end(g.Ticket, Sum(shardOf(0, 0)))
	if again := u.start(0, 0); again.Status != store.PutExists {
		t.Errorf("status %d, want exists", again.Status)
	}
}

func existing(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	if g := u.start(0, 0); g.Status != store.PutExists {
		t.Errorf("status %d, want exists", g.Status)
	}
}

func revoked(t *testing.T, u *user) {
	g := u.start(0, 0)
	if err := u.s.PutRevoke(context.Background(), u.ns, []uint64{g.Ticket}); err != nil {
		t.Fatal(err)
	}
	if u.end(g.Ticket, 0) {
		t.Error("a revoked put was published")
	}
	u.put(0, 0)
	u.put(0, 1)
	u.expect(0, 0, true)
}

func revokedLate(t *testing.T, u *user) {
	u.put(0, 0)
	g := u.start(0, 1)
	copy(u.memory(g.Place), shardOf(0, 1))
	u.end(g.Ticket, Sum(shardOf(0, 1)))
	if err := u.s.PutRevoke(context.Background(), u.ns, []uint64{g.Ticket}); err != nil {
		t.Fatal(err)
	}
	u.expect(0, 1, true)
}

func inProgress(_ *testing.T, u *user) {
	u.put(0, 0)
	g := u.start(0, 1)
	u.expect(0, 0, false)
	copy(u.memory(g.Place), shardOf(0, 1))
	u.end(g.Ticket, Sum(shardOf(0, 1)))
	u.expect(0, 0, true)
	u.expect(0, 1, true)
}

func unknownRefs(_ *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	u.release(1<<40 + 12345)
	u.expect(0, 0, true)
}

func unknownTickets(t *testing.T, u *user) {
	if u.end(1<<40+12345, 0) {
		t.Error("a ticket that was never granted was published")
	}
}

func corrupt(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	if err := u.s.ReportFailed(context.Background(), u.ns, []store.FailedChunk{{Hash: hashOf(0), Corrupt: true}}); err != nil {
		t.Fatal(err)
	}
	u.expect(0, 0, false)
	u.put(0, 0)
	u.put(0, 1)
	u.expect(0, 0, true)
}

func staleNamespace(t *testing.T, u *user) {
	unknown := store.Namespace{ID: u.ns.ID + 1000}
	_, err := u.s.Get(context.Background(), unknown, store.Lease{}, []store.GetItem{{Hash: hashOf(0)}})
	if !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("get: %v, want ErrStaleNamespace", err)
	}
	_, err = u.s.PutStart(context.Background(), unknown, store.PutOptions{}, []store.PutItem{{Hash: hashOf(0)}})
	if !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("put start: %v, want ErrStaleNamespace", err)
	}
}

func twoNamespaces(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	mine := u.ns
	if u.ns = u.open(Spec("another model", 2)); u.ns.ID == mine.ID {
		t.Error("two namespaces have one id")
	}
	u.expect(0, 0, false)
}

func openAgain(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	if again := u.open(Spec("model", 2)); again != u.ns {
		t.Errorf("got %+v, want %+v", again, u.ns)
	}
	u.expect(0, 0, true)
}

func doneContext(t *testing.T, u *user) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := u.s.AwaitArrival(ctx, u.ns, store.ChunkKey{Hash: hashOf(0)}, time.Hour); err == nil {
		t.Error("an arrival: no error")
	}
	u.put(0, 0) // the session is none the worse
	if _, err := u.s.Get(ctx, u.ns, store.Lease{}, []store.GetItem{{Hash: hashOf(0)}}); err == nil {
		t.Error("a get: no error")
	}
}

func nothingComes(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	u.put(1, 0) // not whole
	for i := range 3 {
		if err := u.s.AwaitArrival(context.Background(), u.ns, store.ChunkKey{Hash: hashOf(i)}, time.Hour); err != nil {
			t.Errorf("chunk %d: %v", i, err)
		}
	}
}

func parallel(_ *testing.T, u *user) {
	var users sync.WaitGroup
	for w := range 4 {
		users.Go(func() {
			for i := range 20 {
				u.put(100*w+i, 0)
				u.put(100*w+i, 1)
				u.expect(100*w+i, 1, true)
			}
		})
	}
	users.Wait()
	for w := range 4 {
		u.expect(100*w, 0, true)
	}
}

func independentRefs(t *testing.T, u *user) {
	u.put(0, 0)
	u.put(0, 1)
	a, b := u.get(0, 0), u.get(0, 0)
	if a.Ref == b.Ref {
		t.Fatal("two references are one")
	}
	u.release(a.Ref)
	u.release(a.Ref) // twice must not take the other's
	if !bytes.Equal(u.memory(b.Place), shardOf(0, 0)) {
		t.Error("the bytes under a reference changed")
	}
	u.release(b.Ref)
}
