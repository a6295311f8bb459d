package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
	"pgregory.net/rapid"
)

// heapMemory is a segment's memory without a mapping.
type heapMemory []byte

func (h heapMemory) Bytes() []byte                { return h }
func (h heapMemory) Words() []atomic.Uint64       { return shm.Words(h) }
func (h heapMemory) Prepare(uint64, uint64) error { return nil }

// Bind implements Binder on a machine of as many nodes as one likes.
func (h heapMemory) Bind(uint64, uint64, int) error { return nil }

// world is a master, its memory and the processes that exist.
type world struct {
	tb    testing.TB
	mem   heapMemory
	m     *Master
	alive map[uint32]bool
	now   time.Time
	nodes []NodeRoom
	steps stepSizes
}

func newWorld(tb testing.TB, dataBytes uint64) *world {
	w := newBareWorld(tb, dataBytes)
	w.prepare()
	return w
}

// newBareWorld has a store of which no memory is ready.
func newBareWorld(tb testing.TB, dataBytes uint64) *world { return newBareWorldOn(tb, dataBytes, nil) }

// newBareWorldOn has it divided between NUMA nodes.
func newBareWorldOn(tb testing.TB, dataBytes uint64, nodes []NodeRoom) *world {
	layout, err := NewLayout([16]byte{1, 2, 3}, dataBytes)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, mem: make(heapMemory, layout.FileBytes), alive: map[uint32]bool{}, now: time.Unix(1000, 0), nodes: nodes}
	if w.m, err = Create(w.mem, layout, w.options()); err != nil {
		tb.Fatal(err)
	}
	return w
}

func (w *world) options() Options {
	return Options{
		Alive: func(pid uint32, _ uint64) bool { return w.alive[pid] },
		Now:   func() time.Time { return w.now },
		Log:   slog.New(slog.DiscardHandler),
		Nodes: w.nodes,
		steps: w.steps,
	}
}

func (w *world) prepare() {
	for {
		more, err := w.m.PrepareNext()
		if err != nil {
			w.tb.Fatal(err)
		}
		if !more {
			return
		}
	}
}

// crash replaces the master as after kill -9.
func (w *world) crash() Recovery {
	m, report, err := Adopt(w.mem, w.options())
	if err != nil {
		w.tb.Fatal(err)
	}
	w.m = m
	return report
}

func testSpec(name string, shardBytes, shards int) *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: name, Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256", HashBytes: 32,
		HashBlockTokens: 16, SchedulerBlockTokens: 16, TP: shards, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: shardBytes, Shards: shards}},
	}
}

func testHash(n int) kv.Hash {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(n))
	var h kv.Hash
	for i := range 4 {
		c := crc32.ChecksumIEEE(append(seed[:], byte(i)))
		binary.LittleEndian.PutUint32(h[4*i:], c)
		binary.LittleEndian.PutUint32(h[16+4*i:], ^c)
	}
	return h
}

func fillShard(b []byte, chunk, shard int) {
	pattern := fmt.Appendf(nil, "%d/%d;", chunk, shard)
	for i := range b {
		b[i] = pattern[i%len(pattern)]
	}
}

func (w *world) open(client, session uint64, pid uint32, held Declaration) Session {
	w.alive[pid] = true
	s := Session{Client: client, Number: session}
	if err := w.m.OpenSession(s, pid, 7, held); err != nil {
		w.tb.Fatal(err)
	}
	return s
}

func (w *world) namespace(spec *kv.NamespaceSpec) store.Namespace {
	ns, err := w.m.OpenNamespace(spec)
	if err != nil {
		w.tb.Fatal(err)
	}
	return ns
}

func (w *world) place(p store.Place) []byte {
	return w.mem[w.m.seg.DataOffset+p.Offset:][:p.Bytes]
}

func (w *world) store(s Session, ns store.Namespace, chunk, shard int) store.PutStatus {
	g, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(chunk), Shard: uint32(shard)}})
	if err != nil {
		w.tb.Fatal(err)
	}
	if g[0].Status == store.PutGranted {
		b := w.place(g[0].Place)
		fillShard(b, chunk, shard)
		ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket, Checksum: crc32.Checksum(b, castagnoli)}})
		if err != nil || !ok[0] {
			w.tb.Fatalf("PutEnd: %v %v", ok, err)
		}
	}
	return g[0].Status
}

func (w *world) exists(ns store.Namespace, chunk int) bool {
	v := w.m.View(ns.ID)
	defer v.Close()
	return v.Exists(0, testHash(chunk)) == kv.Present
}

// checkBytes loads a shard and reports whether it was there; wrong bytes fail.
func (w *world) checkBytes(s Session, ns store.Namespace, chunk, shard int) bool {
	r, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(chunk), Shard: uint32(shard)}})
	if err != nil {
		w.tb.Fatal(err)
	}
	if r[0].Status != store.GetReady {
		return false
	}
	got := w.place(r[0].Place)
	want := make([]byte, len(got))
	fillShard(want, chunk, shard)
	if !bytes.Equal(got, want) || crc32.Checksum(got, castagnoli) != r[0].Checksum {
		w.tb.Fatalf("chunk %d shard %d: wrong bytes", chunk, shard)
	}
	if err := w.m.Release(s, []uint64{r[0].Ref}); err != nil {
		w.tb.Fatal(err)
	}
	return true
}

func TestChunkIsVisibleOnlyWhole(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 2))
	w.store(s, ns, 1, 0)
	if w.exists(ns, 1) {
		t.Fatal("a chunk with one of two shards is visible")
	}
	w.store(s, ns, 1, 1)
	if !w.exists(ns, 1) || !w.checkBytes(s, ns, 1, 0) || !w.checkBytes(s, ns, 1, 1) {
		t.Fatal("a whole chunk is not served")
	}
	if got := w.store(s, ns, 1, 1); got != store.PutExists {
		t.Fatalf("second put: %v, want PutExists", got)
	}
	w.m.validate(t)
}

func TestEvictionSparesWhatIsInUse(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 256<<10, 1)) // 8 slots in the only slab
	for i := range 8 {
		w.store(s, ns, i, 0)
	}
	read, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(0)}})
	if err != nil || read[0].Status != store.GetReady {
		t.Fatal(read, err)
	}
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "r"}, []store.ChunkKey{{Hash: testHash(1)}}, time.Minute)
	for i := 8; i < 40; i++ {
		if got := w.store(s, ns, i, 0); got != store.PutGranted {
			t.Fatalf("put %d: %v", i, got)
		}
	}
	if !w.exists(ns, 0) || !w.exists(ns, 1) {
		t.Fatal("a chunk that is read or leased was evicted")
	}
	// A load renews the lease: after 50 s of its minute, 50 s more pass.
	w.now = w.now.Add(50 * time.Second)
	if _, err := w.m.Get(s, ns, store.Lease{Engine: "e", Request: "r"}, nil); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(50 * time.Second)
	w.m.Reap()
	if w.m.Stats().LeasedBytes == 0 {
		t.Fatal("a load did not renew the lease")
	}
	w.now = w.now.Add(time.Minute)
	w.m.Reap()
	if err := w.m.Release(s, []uint64{read[0].Ref}); err != nil {
		t.Fatal(err)
	}
	for i := 40; i < 80; i++ {
		w.store(s, ns, i, 0)
	}
	if w.exists(ns, 0) || w.exists(ns, 1) {
		t.Fatal("an expired lease or a released reference still protects")
	}
	w.m.validate(t)
}

func TestLeasesHoldAtMostTheirShare(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 256<<10, 1))
	var keys []store.ChunkKey
	for i := range 8 {
		w.store(s, ns, i, 0)
		keys = append(keys, store.ChunkKey{Hash: testHash(i)})
	}
	w.m.Grant(ns.ID, store.Lease{Engine: "e", Request: "r"}, keys, time.Minute)
	if got := w.m.Stats().LeasedBytes; got != 512<<10 {
		t.Fatalf("%d bytes leased, want a quarter of 2 MiB", got)
	}
	w.m.ReleaseEngine("e")
	if got := w.m.Stats().LeasedBytes; got != 0 {
		t.Fatalf("%d bytes leased after release", got)
	}
}

func TestResetVoidsOpenPutsAndSparesReaders(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns, other := w.namespace(testSpec("m", 256<<10, 1)), w.namespace(testSpec("other", 256<<10, 1))
	w.store(s, ns, 1, 0)
	w.store(s, other, 1, 0)
	read, _ := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(1)}})
	put, _ := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(2)}})
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	if w.exists(ns, 1) || !w.exists(other, 1) {
		t.Fatal("reset must drop its namespace and no other")
	}
	if ok, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: put[0].Ticket}}); err != nil || ok[0] {
		t.Fatalf("a put from before the reset was published: %v %v", ok, err)
	}
	if _, err := w.m.PutStart(s, ns, nil); !errors.Is(err, store.ErrStaleNamespace) {
		t.Fatalf("put with the old epoch: %v", err)
	}
	// The slot that is read must not be handed out.
	fresh := w.namespace(testSpec("m", 256<<10, 1))
	for i := 10; i < 30; i++ {
		w.store(s, fresh, i, 0)
	}
	want := make([]byte, 256<<10)
	fillShard(want, 1, 0)
	if !bytes.Equal(w.place(read[0].Place), want) {
		t.Fatal("a slot was reused under a reader")
	}
	if err := w.m.Release(s, []uint64{read[0].Ref}); err != nil {
		t.Fatal(err)
	}
	w.m.validate(t)
}

func TestFailedChunkIsMissOnce(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.store(s, ns, 1, 0)
	w.store(s, ns, 2, 0)
	err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1)}, {Hash: testHash(2), Corrupt: true}})
	if err != nil {
		t.Fatal(err)
	}
	if w.exists(ns, 1) {
		t.Fatal("first lookup after the failure hits")
	}
	if !w.exists(ns, 1) {
		t.Fatal("second lookup still misses")
	}
	if w.exists(ns, 2) || w.m.Stats().Chunks != 1 {
		t.Fatal("a corrupt chunk is still there")
	}
}

// TestRestartWaitsForUndeclaredClients is the store's part of the fence.
func TestRestartWaitsForUndeclaredClients(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	w.open(2, 2, 200, Declaration{})
	spec := testSpec("m", 256<<10, 1)
	ns := w.namespace(spec)
	w.store(s, ns, 1, 0)
	read, _ := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(1)}})
	put, _ := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(2)}})

	if got := w.crash(); got.Chunks != 1 || got.Undeclared != 2 {
		t.Fatalf("recovered %+v", got)
	}
	if !w.exists(ns, 1) || w.exists(ns, 2) {
		t.Fatal("recovery must keep whole chunks and drop the half-written")
	}
	s = w.open(1, 3, 100, Declaration{Reads: []uint64{read[0].Ref}, Puts: []uint64{put[0].Ticket}})
	fresh := w.namespace(spec)
	if got := w.store(s, fresh, 3, 0); got != store.PutRefused {
		t.Fatalf("put while client 2 is unheard of: %v", got)
	}
	w.alive[200] = false
	w.m.Reap()
	for i := 10; i < 40; i++ {
		if g, _ := w.m.PutStart(s, fresh, []store.PutItem{{Hash: testHash(i)}}); g[0].Status == store.PutGranted {
			if g[0].Place.Offset == read[0].Place.Offset || g[0].Place.Offset == put[0].Place.Offset {
				t.Fatal("a slot that a client declared was handed out")
			}
			if _, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g[0].Ticket}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ok, _ := w.m.PutEnd(s, []store.PutCommit{{Ticket: put[0].Ticket}}); ok[0] {
		t.Fatal("a put of the dead master was published")
	}
	w.m.validate(t)
}

func TestLostClientKeepsItsSlotsUntilDead(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 1<<20, 1)) // two slots
	g, _ := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(1)}, {Hash: testHash(2)}})
	w.m.SessionLost(s)
	other := w.open(2, 2, 200, Declaration{})
	if got := w.store(other, ns, 3, 0); got != store.PutNoSpace {
		t.Fatalf("put into a slot that a live process may write: %v", got)
	}
	w.alive[100] = false
	w.m.Reap()
	if got := w.store(other, ns, 3, 0); got != store.PutGranted {
		t.Fatalf("put after the writer died: %v", got)
	}
	_ = g
	w.m.validate(t)
}

// TestRandomOperations compares with a naive model over random operations,
// crashes included: what the store says it has must have been stored and must
// have the right bytes.
func TestRandomOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, 4<<20)
		specs := []*kv.NamespaceSpec{testSpec("a", 300<<10, 1), testSpec("b", 90<<10, 2)}
		session := uint64(1)
		s := w.open(1, session, 100, Declaration{})
		stored := []map[int]uint8{{}, {}}
		reads, puts := map[uint64][]byte{}, map[uint64]bool{}
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			which := rapid.IntRange(0, 1).Draw(rt, "namespace")
			ns := w.namespace(specs[which])
			chunk := rapid.IntRange(0, 30).Draw(rt, "chunk")
			shard := rapid.IntRange(0, which).Draw(rt, "shard")
			switch rapid.IntRange(0, 9).Draw(rt, "op") {
			case 0, 1, 2, 3:
				w.store(s, ns, chunk, shard)
				stored[which][chunk] |= 1 << shard
			case 4, 5:
				if w.checkBytes(s, ns, chunk, shard) && stored[which][chunk] != uint8(specs[which].Groups[0].Shards*2-1)&3 {
					rt.Fatalf("chunk %d of %d was never stored whole (%b)", chunk, which, stored[which][chunk])
				}
			case 6:
				r, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(chunk), Shard: uint32(shard)}})
				if err != nil {
					rt.Fatal(err)
				}
				if r[0].Status == store.GetReady {
					reads[r[0].Ref] = slices.Clone(w.place(r[0].Place))
				}
			case 7:
				g, err := w.m.PutStart(s, ns, []store.PutItem{{Hash: testHash(1000 + chunk), Shard: uint32(shard)}})
				if err != nil {
					rt.Fatal(err)
				}
				if g[0].Status == store.PutGranted {
					clear(w.place(g[0].Place))
					puts[g[0].Ticket] = true
				}
			case 8:
				if rapid.Bool().Draw(rt, "reset") {
					_ = w.m.Reset(ns.ID)
					stored[which] = map[int]uint8{}
					break
				}
				w.crash()
				session++
				s = w.open(1, session, 100, Declaration{Reads: slices.Collect(maps.Keys(reads)), Puts: slices.Collect(maps.Keys(puts))})
			case 9:
				for ref, want := range reads {
					if !bytes.Equal(w.mem[w.m.seg.DataOffset+w.m.seg.slotOffset(uint32(ref>>32), w.m.alloc.slotBytes(uint32(ref>>32))):][:len(want)], want) {
						rt.Fatal("bytes changed under a reader")
					}
				}
				if err := w.m.Release(s, slices.Collect(maps.Keys(reads))); err != nil {
					rt.Fatal(err)
				}
				if err := w.m.PutRevoke(s, slices.Collect(maps.Keys(puts))); err != nil {
					rt.Fatal(err)
				}
				clear(reads)
				clear(puts)
			}
			w.m.validate(rt)
		}
	})
}

// TestLateClassTakesASlab: a second model gets memory although the first one has
// filled all of it, and a chunk in use keeps its slab.
func TestLateClassTakesASlab(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	big, small := w.namespace(testSpec("big", 512<<10, 1)), w.namespace(testSpec("small", 64<<10, 1))
	for i := range 12 { // eight fit, so slots have been reused
		w.store(s, big, i, 0)
	}
	kept := 11
	read, err := w.m.Get(s, big, store.Lease{}, []store.GetItem{{Hash: testHash(kept)}})
	if err != nil || read[0].Status != store.GetReady {
		t.Fatal(read, err)
	}
	for i := range 40 {
		if got := w.store(s, small, i, 0); got != store.PutGranted {
			t.Fatalf("put %d of the late class: %v", i, got)
		}
	}
	if !w.exists(big, kept) {
		t.Fatal("a chunk in use lost its slab")
	}
	if err := w.m.ReportFailed(s, big, []store.FailedChunk{{Hash: testHash(kept), Corrupt: true}}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		w.store(s, big, 20+i, 0)
	}
	if !w.exists(big, 23) {
		t.Fatal("the first class got nothing back")
	}
	w.m.validate(t)
}
