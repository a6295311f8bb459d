package embedded

import (
	"context"
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// fakeCluster is a Cluster that does what it was handed over when the test says so.
type fakeCluster struct {
	objects map[disk.Key][][]byte
	known   map[disk.Key]kv.Existence
	era     uint8
	refuses bool
	noFetch bool
	left    map[[32]byte]bool
	soiled  map[[32]byte]bool // at Open, until the test says otherwise
	puts    []func(error)
	gets    []func(error)
	asked   int
	resets  []time.Time // when they were asked for
	pins    map[disk.Key]store.Pin
	renewed []func()
	// removes: removals here go there, too; emptied are the namespaces.
	removes   bool
	emptied   map[[32]byte]int
	forgotten map[disk.Key]int
	keeps     bool // too many are being removed
	settled   int
	unsettled error
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{objects: map[disk.Key][][]byte{}, known: map[disk.Key]kv.Existence{}, era: 1, left: map[[32]byte]bool{}, soiled: map[[32]byte]bool{}, pins: map[disk.Key]store.Pin{}, emptied: map[[32]byte]int{}, forgotten: map[disk.Key]int{}}
}

func (c *fakeCluster) Look(key *disk.Key) (disk.Found, bool) {
	return disk.Found{Bytes: 1}, c.known[*key] == kv.Present
}
func (c *fakeCluster) Offers(key *disk.Key) (disk.Found, bool)  { return c.Look(key) }
func (c *fakeCluster) MissOnce(key *disk.Key)                   { c.known[*key] = kv.Absent }
func (c *fakeCluster) Touch(*disk.Key)                          {}
func (c *fakeCluster) CanFetch() bool                           { return !c.noFetch }
func (c *fakeCluster) CanDemote(uint64) bool                    { return !c.refuses }
func (c *fakeCluster) QueueBytes() uint64                       { return 1 << 20 }
func (c *fakeCluster) Deadline(time.Duration) uint32            { return 0 }
func (c *fakeCluster) Left(uint32) time.Duration                { return 0 }
func (c *fakeCluster) Open(spec *kv.NamespaceSpec, soiled bool) { c.soiled[spec.Digest()] = soiled }
func (c *fakeCluster) Clean(digest [32]byte) bool               { return !c.left[digest] && !c.soiled[digest] }
func (c *fakeCluster) Era() uint8                               { return c.era }
func (c *fakeCluster) Takes(digest [32]byte) bool               { return !c.left[digest] }
func (c *fakeCluster) Removes() bool                            { return c.removes }
func (c *fakeCluster) RemoveAll(digest [32]byte)                { c.emptied[digest]++ }
func (c *fakeCluster) Settle() error                            { c.settled++; return c.unsettled }
func (c *fakeCluster) Leave(digest [32]byte)                    { c.left[digest] = true }

func (c *fakeCluster) Forget(key *disk.Key) bool {
	if c.keeps {
		return false
	}
	c.known[*key] = kv.Absent
	c.forgotten[*key]++
	return true
}

func (c *fakeCluster) Share(chunk disk.Chunk, pin store.Pin, source [][]byte, done func(error)) bool {
	c.pins[chunk.Key] = pin
	return c.Demote(chunk, source, done)
}

func (c *fakeCluster) Renew(key disk.Key, gone func(disk.Key)) {
	c.renewed = append(c.renewed, func() {
		if c.objects[key] == nil {
			gone(key)
		}
	})
}

func (c *fakeCluster) Reset(context.Context, [32]byte) error {
	c.resets = append(c.resets, time.Now())
	return nil
}

func (c *fakeCluster) Fetch(key disk.Key, into [][]byte, done func(*disk.Chunk, error)) bool {
	if c.noFetch {
		return false
	}
	c.gets = append(c.gets, func(err error) {
		chunk := &disk.Chunk{Key: key, ShardBytes: uint32(len(into[0]))}
		for i, shard := range into {
			if err == nil {
				copy(shard, c.objects[key][i])
			}
			chunk.Checksums = append(chunk.Checksums, crc32.Checksum(shard, castagnoli))
		}
		done(chunk, err)
	})
	return true
}

func (c *fakeCluster) Demote(chunk disk.Chunk, source [][]byte, done func(error)) bool {
	if c.refuses || c.left[chunk.Namespace] {
		return false
	}
	c.puts = append(c.puts, func(err error) {
		if err == nil {
			var shards [][]byte
			for _, s := range source {
				shards = append(shards, append([]byte{}, s...))
			}
			c.objects[chunk.Key], c.known[chunk.Key] = shards, kv.Present
		}
		done(err)
	})
	return true
}

func (c *fakeCluster) Ask(_ context.Context, digest [32]byte, chunks []store.ChunkKey) error {
	c.asked += len(chunks)
	for i := range chunks {
		key := disk.Key{Namespace: digest, Group: uint16(chunks[i].Group), Hash: chunks[i].Hash}
		c.known[key] = kv.Absent
		if c.objects[key] != nil {
			c.known[key] = kv.Present
		}
	}
	return nil
}

type fakeGlance struct {
	c      *fakeCluster
	digest [32]byte
}

func (c *fakeCluster) Glance(digest [32]byte) Glance { return fakeGlance{c, digest} }

func (g fakeGlance) Exists(group uint32, hash *kv.Hash) kv.Existence {
	if e, known := g.c.known[disk.Key{Namespace: g.digest, Group: uint16(group), Hash: *hash}]; known {
		return e
	}
	return kv.Unknown
}

func (g fakeGlance) Ahead(group uint32, hashes kv.HashBlob, from int, answers []kv.Existence) {
	for i := range answers {
		hash := hashes.At(from + i)
		answers[i] = g.Exists(group, &hash)
	}
}

// do ends what was handed over.
func do(list *[]func(error), err error) int {
	now := *list
	*list = nil
	for _, f := range now {
		f(err)
	}
	return len(now)
}

// clusterWorld is a world with a cluster below, and a session in it.
type clusterWorld struct {
	*world
	c  *fakeCluster
	s  Session
	ns store.Namespace
}

func newClusterWorld(t *testing.T, writeBack bool) *clusterWorld {
	t.Helper()
	w := &clusterWorld{world: newWorld(t, 32<<20), c: newFakeCluster()}
	w.m.SetCluster(w.c, writeBack)
	w.s = w.open(1, 1, 100, Declaration{})
	w.ns = w.namespace(testSpec("m", 4096, 2))
	return w
}

func (w *clusterWorld) storeWhole(chunk int) {
	w.tb.Helper()
	for shard := range 2 {
		if status := w.store(w.s, w.ns, chunk, shard); status != store.PutGranted {
			w.tb.Fatalf("chunk %d shard %d is answered %d", chunk, shard, status)
		}
	}
}

func (w *clusterWorld) view(chunk int) (kv.Existence, store.Tier) {
	v := w.m.View(w.ns.ID)
	defer v.Close()
	e := v.Exists(0, testHash(chunk))
	return e, v.TierOf(0, testHash(chunk))
}

func (w *clusterWorld) grant(chunk int) {
	w.m.Grant(w.ns.ID, store.Lease{Engine: "e", Request: "r"}, []store.ChunkKey{{Hash: testHash(chunk)}}, time.Minute)
}

func (w *clusterWorld) drop(chunk int) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	rec, ok := w.m.findLocked(w.ns.ID, 0, new(testHash(chunk)))
	if !ok {
		w.tb.Fatalf("chunk %d is not here", chunk)
	}
	w.m.dropLocked(rec, RemovedEvicted)
}

// TestSharedWhenWhole: a chunk goes to the cluster once, when all of its shards are
// there, and its bytes stay until it has arrived, whatever becomes of the chunk.
func TestSharedWhenWhole(t *testing.T) {
	w := newClusterWorld(t, false)
	w.store(w.s, w.ns, 1, 0)
	if len(w.c.puts) != 0 {
		t.Fatal("a part of a chunk was shared")
	}
	w.store(w.s, w.ns, 1, 1)
	if len(w.c.puts) != 1 {
		t.Fatalf("%d puts", len(w.c.puts))
	}
	w.drop(1)
	w.m.validate(t)
	used := w.m.Stats().UsedBytes
	if used == 0 {
		t.Error("the bytes of a chunk that is being put were given away")
	}
	do(&w.c.puts, nil)
	w.m.validate(t)
	if s := w.m.Stats(); s.UsedBytes >= used || s.Tiers.Cluster.Shared != 1 {
		t.Errorf("%d bytes are in use, %+v", s.UsedBytes, s.Tiers.Cluster)
	}
}

// TestComesFromTheCluster: what is not here is unknown until it was asked for; then
// it is promised, brought with the lease, and loaded; what came is not put again.
func TestComesFromTheCluster(t *testing.T) {
	w := newClusterWorld(t, false)
	w.storeWhole(1)
	do(&w.c.puts, nil)
	w.drop(1)
	clear(w.c.known)
	if e, _ := w.view(1); e != kv.Unknown {
		t.Fatalf("it is %s", e)
	}
	if err := w.m.Ask(t.Context(), w.ns.ID, []store.ChunkKey{{Hash: testHash(1)}, {Hash: testHash(2)}}); err != nil {
		t.Fatal(err)
	}
	if e, tier := w.view(1); e != kv.Present || tier != store.TierRemote {
		t.Fatalf("it is %s, on tier %d", e, tier)
	}
	if e, _ := w.view(2); e != kv.Absent {
		t.Errorf("another is %s", e)
	}
	w.grant(1)
	if n := do(&w.c.gets, nil); n != 1 {
		t.Fatalf("%d gets", n)
	}
	w.m.validate(t)
	for shard := range 2 {
		if !w.checkBytes(w.s, w.ns, 1, shard) {
			t.Errorf("shard %d is not here", shard)
		}
	}
	if e, tier := w.view(1); e != kv.Present || tier != store.TierHost {
		t.Errorf("it is %s, on tier %d", e, tier)
	}
	if s := w.m.Stats().Tiers.Cluster; len(w.c.puts) != 0 || s.Promoted != 1 || s.Hits != 2 {
		t.Errorf("%d puts, %+v", len(w.c.puts), s)
	}
}

// TestGoneFromTheCluster: a get that fails gives the memory back, and the chunk is
// a miss.
func TestGoneFromTheCluster(t *testing.T) {
	w := newClusterWorld(t, false)
	w.storeWhole(1)
	do(&w.c.puts, nil)
	w.drop(1)
	w.grant(1)
	do(&w.c.gets, errors.New("gone"))
	w.m.validate(t)
	if e, _ := w.view(1); e != kv.Absent {
		t.Errorf("it is %s", e)
	}
	if s := w.m.Stats(); s.UsedBytes != 0 || s.Tiers.Cluster.PromotionsFailed != 1 {
		t.Errorf("%d bytes are in use, %+v", s.UsedBytes, s.Tiers.Cluster)
	}
}

// TestSharedAgain: what was not taken, or the cluster may have lost, is handed over
// when it is used, and once.
func TestSharedAgain(t *testing.T) {
	w := newClusterWorld(t, false)
	w.c.refuses = true
	w.storeWhole(1)
	if s := w.m.Stats().Tiers.Cluster; s.ShareRefused != 1 {
		t.Errorf("%+v", s)
	}
	use := func(want int) {
		t.Helper()
		w.grant(1)
		if n := do(&w.c.puts, nil); n != want {
			t.Errorf("%d puts, want %d", n, want)
		}
		w.m.validate(t)
	}
	use(0) // it takes none
	w.c.refuses = false
	use(1)
	use(0)
	w.c.era = 0 // it is away
	use(0)
	w.c.era = 2
	use(1)
	w.grant(1)
	w.c.era = 3
	w.grant(1)
	if n := do(&w.c.puts, errors.New("no room")); n != 1 {
		t.Errorf("%d puts", n)
	}
	use(1) // that one failed
	w.c.Leave(w.m.namespaces[w.ns.ID].digest)
	w.c.era = 4
	use(0)
}

// TestDamagedBeforeItIsShared: bytes that are not those of the checksum are dropped
// here, too.
func TestDamagedBeforeItIsShared(t *testing.T) {
	w := newClusterWorld(t, false)
	w.storeWhole(1)
	do(&w.c.puts, disk.ErrSource)
	w.m.validate(t)
	if e, _ := w.view(1); e == kv.Present || w.m.Stats().Corrupt != 1 {
		t.Errorf("it is %s", e)
	}
}

// TestNoMoreThanMemoryHolds: a lookup promises no more of the cluster than a load
// could have in memory.
func TestNoMoreThanMemoryHolds(t *testing.T) {
	w := newClusterWorld(t, false)
	large := w.namespace(testSpec("large", 1<<20, 1))
	digest := w.m.namespaces[large.ID].digest
	for i := range 100 {
		w.c.known[disk.Key{Namespace: digest, Hash: testHash(i)}] = kv.Present
	}
	v := w.m.View(large.ID)
	defer v.Close()
	present := 0
	for range 2 { // asked twice, a chunk is promised once
		present = 0
		for i := range 100 {
			if v.Exists(0, testHash(i)) == kv.Present {
				present++
			}
		}
	}
	if most := int(uint64(w.m.seg.Slabs) * w.m.seg.SlabBytes / promiseShare >> 20); present == 0 || present > most {
		t.Errorf("%d MiB of %d were promised", present, most)
	}
}

// TestWrittenBack: with write-back nothing goes before its room is needed.
func TestWrittenBack(t *testing.T) {
	w := newClusterWorld(t, true)
	large := w.namespace(testSpec("large", 1<<20, 1))
	w.ns = large
	for i := range 60 { // into 32 MiB
		w.store(w.s, large, i, 0)
		if i == 3 && len(w.c.puts) != 0 {
			t.Fatal("a chunk was written while there was room")
		}
		do(&w.c.puts, nil)
	}
	w.m.validate(t)
	s := w.m.Stats()
	if s.Tiers.Demoted < 20 || s.Tiers.Lost > 0 {
		t.Errorf("%+v", s.Tiers)
	}
	for i := range 60 {
		if e, _ := w.view(i); e != kv.Present {
			t.Errorf("chunk %d is %s", i, e)
		}
	}
}
