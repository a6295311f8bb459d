package embedded

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// worthSeeing are events that a test of many runs must have met.
var worthSeeing = []string{
	"granted", "exists", "underway", "refused", "no space", "evicted", "published", "void", "declared", "doomed read",
	"missed once", "corrupt", "leased", "lease refused", "adopted", "adopted torn", "torn lost", "torn old", "torn new",
	"reaped", "reset", "slab prepared",
	"expired", "pin ended", "pinned soft", "pinned hard", "pin refused", "removed", "removed chain", "evicted by command",
	"over quota", "evicted for quota", "drained", "unpinned",
}

// chunkID names a chunk of the model. All namespaces use the same hashes.
type chunkID struct {
	space int
	group uint32
	n     int
}

func (id chunkID) hash() kv.Hash { return testHash(id.n) }

// parent returns the hash of the predecessor in chains of eight.
func (id chunkID) parent() (kv.Hash, uint32) {
	if id.n%8 == 0 {
		return kv.Hash{}, 0
	}
	return testHash(id.n - 1), uint32(id.n % 8)
}

// modelChunk is a chunk as the model has it. The content of a shard depends on
// the namespace's generation when its put was granted.
type modelChunk struct {
	content map[uint32]uint64 // generation by shard
	failed  bool              // the next lookup is to miss it
	seen    bool              // it was whole when last compared
	life    life
	lost    life // when it was evicted
	// hidden: its time is up; nobody is told of it any more, but it may be in
	// memory and found again by a put.
	hidden bool
}

// space is a namespace of the model.
type space struct {
	spec       *kv.NamespaceSpec
	chunks     int             // hashes in use, by group
	name       store.Namespace // the name now
	opened     bool
	generation uint64
	stale      []store.Namespace // names of before resets
	ttl        time.Duration     // of chunks that are stored without one

	// All chunks, as columns.
	ids    []chunkID
	groups []uint32
	hashes []kv.Hash
}

func (s *space) shards(group uint32) int { return s.spec.Groups[group].Shards }

// modelPut is a place that a client may write.
type modelPut struct {
	ticket     uint64
	id         chunkID
	shard      uint32
	place      store.Place
	generation uint64
	void       bool
}

// modelRead is a place that a client reads.
type modelRead struct {
	ref        uint64
	id         chunkID
	shard      uint32
	place      store.Place
	generation uint64
	orphan     bool // its chunk was dropped
}

// modelClient is a worker process.
type modelClient struct {
	id         uint64
	pid        uint32
	session    Session
	open       bool // its session is open
	alive      bool
	undeclared bool // named by an adopted segment and not heard of since
	puts       map[uint64]*modelPut
	reads      map[uint64]*modelRead
}

// modelLease is a promise of a lookup.
type modelLease struct {
	ids   []chunkID
	ttl   time.Duration
	until time.Duration // of the store's clock
}

// chaos is one run: a store, and the model of what it may and must have.
type chaos struct {
	t        *testing.T
	w        *world
	rng      *rand.Rand
	trace    *os.File
	seen     map[string]int
	log      []string
	ops      []operation
	watchers *watchers

	spaces    []*space
	chunks    map[chunkID]*modelChunk
	numbers   map[kv.Hash]int // chunkID.n by hash
	clients   []*modelClient
	leases    map[store.Lease]*modelLease
	session   uint64 // the last session number
	pid       uint32 // the last process number
	anchor    *modelClient
	feedSeq   uint64
	elapsed   time.Duration // of the store's own clock
	call      life          // of the put at hand
	quotas    map[string]uint64
	gone      map[chunkID]RemoveReason // that the operation at hand drops, and why
	byCommand bool                     // what it evicts is evicted by command
	draining  bool
	prepared  bool // all slabs are
	scratch   []byte
}

// newChaos makes the world of a run: a store that holds a part of what is put.
func newChaos(t *testing.T, seed uint64, seen map[string]int) *chaos {
	c := &chaos{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), seen: seen, ops: operations(),
		chunks: map[chunkID]*modelChunk{}, leases: map[store.Lease]*modelLease{}, gone: map[chunkID]RemoveReason{},
		numbers: map[kv.Hash]int{}, quotas: map[string]uint64{}, elapsed: time.Second,
		pid: 1000,
	}
	two := testSpec("groups", 4<<10, 4)
	two.Groups = append(two.Groups, kv.GroupSpec{Kind: kv.SlidingWindow, WindowTokens: 64, BlockTokens: 16, ShardBytes: 60 << 10, Shards: 1})
	small, data := 200, 3+c.rng.IntN(4)
	if c.chance(6) {
		small, data = 1600, 10 // more than there are records
	}
	c.w = newBareWorldOn(t, uint64(data)*minSlabBytes, someNodes(c.rng))
	c.w.walk(shortSteps(rand.New(rand.NewPCG(seed, 3)), nil))
	for _, s := range []*space{
		{spec: testSpec("anchor", 5000, 1), chunks: anchors},
		{spec: testSpec("small", 8<<10, 1), chunks: small},
		{spec: testSpec("pair", 24<<10, 2), chunks: 64},
		{spec: two, chunks: 40},
		{spec: testSpec("large", 400<<10, 1), chunks: 16},
	} {
		i := len(c.spaces)
		c.spaces = append(c.spaces, s)
		for g := range s.spec.Groups {
			for n := range s.chunks {
				id := chunkID{i, uint32(g), n}
				s.ids, s.groups, s.hashes = append(s.ids, id), append(s.groups, id.group), append(s.hashes, id.hash())
				c.chunks[id] = &modelChunk{content: map[uint32]uint64{}}
				c.numbers[id.hash()] = n
			}
		}
	}
	c.setAnchors()
	c.watchers = watch(c, seed)
	for range 2 {
		c.opNamespace()
		c.newClient()
	}
	return c
}

// step does one operation by chance.
func (c *chaos) step() {
	total := 0
	for i := range c.ops {
		total += c.ops[i].weight
	}
	pick := c.rng.IntN(total)
	for i := range c.ops {
		if pick -= c.ops[i].weight; pick < 0 {
			c.note("-- %s", c.ops[i].name)
			c.ops[i].do(c)
			break
		}
	}
	c.checkReads()
	if fault := c.watchers.fault.Load(); fault != nil {
		c.t.Fatal(*fault)
	}
	if c.rng.IntN(8) == 0 {
		c.w.m.validate(c.t)
		c.checkLives()
	}
}

// note keeps a line for the report of a failure.
func (c *chaos) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if c.trace != nil {
		_, _ = fmt.Fprintln(c.trace, line)
	}
	if len(c.log) == cap(c.log) {
		c.log = append(make([]string, 0, 256), c.log[max(0, len(c.log)-64):]...)
	}
	c.log = append(c.log, line)
}

func (c *chaos) latest() []string { return c.log[max(0, len(c.log)-40):] }

func (c *chaos) saw(event string) { c.seen[event]++ }

// chance is true once in n times.
func (c *chaos) chance(n int) bool { return c.rng.IntN(n) == 0 }

// fill writes the content of a shard.
func (c *chaos) fill(b []byte, id chunkID, shard uint32, generation uint64) {
	x := uint64(id.space)<<48 ^ uint64(id.group)<<40 ^ uint64(id.n)<<16 ^ uint64(shard)<<8 ^ generation<<56 ^ 0x9E3779B97F4A7C15
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		le.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// right tells whether a place holds a shard's content.
func (c *chaos) right(p store.Place, id chunkID, shard uint32, generation uint64) bool {
	if cap(c.scratch) < int(p.Bytes) {
		c.scratch = make([]byte, p.Bytes)
	}
	want := c.scratch[:p.Bytes]
	c.fill(want, id, shard, generation)
	return bytes.Equal(want, c.w.place(p))
}

// checkReads: the bytes of what is being read do not change, whatever happened
// to their chunk.
func (c *chaos) checkReads() {
	for _, cl := range c.clients {
		for _, r := range cl.reads {
			if cl.alive && !c.right(r.place, r.id, r.shard, r.generation) {
				c.t.Fatalf("the bytes of %+v shard %d changed under the reference %x of client %d", r.id, r.shard, r.ref, cl.id)
			}
		}
	}
}

// sum is the checksum that a client gives at the end of a put.
func (c *chaos) sum(p store.Place) uint32 { return crc32.Checksum(c.w.place(p), castagnoli) }

// whole tells whether the model has all shards of a chunk, for all to see.
func (c *chaos) whole(id chunkID) bool {
	ch := c.chunks[id]
	return len(ch.content) == c.spaces[id.space].shards(id.group) && !ch.hidden
}

// state is what an operator would be told of a chunk.
func (c *chaos) state(id chunkID) ChunkState {
	switch ch := c.chunks[id]; {
	case len(ch.content) == 0 || ch.hidden:
		return ChunkAbsent
	case !c.whole(id):
		return ChunkPartial
	case ch.failed:
		return ChunkFailed
	}
	return ChunkPresent
}

// guarded are the chunks that must not be evicted: being read, being stored,
// promised, or pinned hard.
func (c *chaos) guarded() map[chunkID]bool {
	out := map[chunkID]bool{}
	for _, cl := range c.clients {
		for _, r := range cl.reads {
			if !r.orphan && !c.chunks[r.id].hidden && !cl.undeclared {
				out[r.id] = true
			}
		}
		for _, p := range cl.puts {
			if !p.void {
				out[p.id] = true
			}
		}
	}
	for _, l := range c.leases {
		for _, id := range l.ids {
			out[id] = true
		}
	}
	for id, ch := range c.chunks {
		if len(ch.content) > 0 && ch.life.pin == PinHard {
			out[id] = true
		}
	}
	return out
}

// drop takes a chunk out of the model.
func (c *chaos) drop(id chunkID) {
	ch := c.chunks[id]
	clear(ch.content)
	ch.failed, ch.hidden = false, false
	for _, cl := range c.clients {
		for _, r := range cl.reads {
			if r.id == id {
				r.orphan = true
			}
		}
		for _, p := range cl.puts {
			if p.id == id {
				p.void = true
			}
		}
	}
	for _, l := range c.leases {
		for i := 0; i < len(l.ids); i++ {
			if l.ids[i] == id {
				l.ids = append(l.ids[:i], l.ids[i+1:]...)
				i--
			}
		}
	}
}

// undeclared tells whether the master waits for a client of an earlier one.
func (c *chaos) undeclared() int {
	n := 0
	for _, cl := range c.clients {
		if cl.undeclared {
			n++
		}
	}
	return n
}

// reap takes dead clients out of the model, when the master has looked for them.
func (c *chaos) reap() {
	kept := c.clients[:0]
	for _, cl := range c.clients {
		if cl.alive || cl.open {
			kept = append(kept, cl)
		} else {
			c.saw("reaped")
		}
	}
	clear(c.clients[len(kept):])
	c.clients = kept
}

// one returns a random element.
func one[T any](c *chaos, from []T) T { return from[c.rng.IntN(len(from))] }

// someClient returns a client with an open session, or nil.
func (c *chaos) someClient() *modelClient {
	var open []*modelClient
	for _, cl := range c.clients {
		if cl.open && cl.alive && cl != c.anchor {
			open = append(open, cl)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return one(c, open)
}

// someSpace returns the index of a random open namespace that is not the
// anchors'.
func (c *chaos) someSpace() int {
	var open []int
	for i, s := range c.spaces {
		if s.opened && i > 0 {
			open = append(open, i)
		}
	}
	return one(c, open)
}

// someChunks returns up to n chunks of a namespace, in part of one chain, and half
// the time from one on that is there.
func (c *chaos) someChunks(s, n int) []chunkID {
	out := make([]chunkID, 0, n)
	known := c.chance(2)
	for range 1 + c.rng.IntN(n) {
		id := one(c, c.spaces[s].ids)
		for tries := 0; known && len(c.chunks[id].content) == 0 && tries < 20; tries++ {
			id = one(c, c.spaces[s].ids)
		}
		if len(out) > 0 && !c.chance(4) {
			id = out[len(out)-1]
			id.n = (id.n + 1) % c.spaces[s].chunks
		}
		out = append(out, id)
	}
	return out
}
