package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// tierShare is the part of the time for random runs that those with a disk take.
const tierShare = 4

// tierStepsPerRun is enough for several crashes and for disk and memory to be
// written over.
const tierStepsPerRun = 120

// TestMetamorphicTier makes random runs of a store with a disk below it, which is
// well, slow, full of errors or torn by kill -9. What is on the disk and what is
// in memory depends on the disk's pace, so that the model says less than that of
// TestMetamorphic: which chunks may be served, with which bytes, and which not.
func TestMetamorphicTier(t *testing.T) {
	if *metamorphicSeed != 0 {
		runMetamorphicTier(t, *metamorphicSeed, map[string]int{})
		return
	}
	seen := map[string]int{}
	runs, first := 0, firstSeed()
	for end := time.Now().Add(*metamorphicFor / tierShare); time.Now().Before(end) && !t.Failed(); runs++ {
		runMetamorphicTier(t, first+uint64(runs), seen)
	}
	t.Logf("%d runs from seed %d: %v", runs, first, seen)
	for _, event := range []string{"from disk", "killed", "lost", "reset", "removed", "removed a tag", "removed a namespace", "removed a chain"} {
		if runs >= 300 && seen[event] == 0 {
			t.Errorf("%d runs have never seen %q", runs, event)
		}
	}
}

// tierChunk is a chunk of the model.
type tierChunk struct {
	content []uint64 // generations of the bytes that it may have; none: it is not there
	expires time.Time
	// again: it was dropped without a word to the disk that would outlive a kill,
	// so that it may be back, with these bytes, after one.
	again []uint64
}

// tierRun is one run.
type tierRun struct {
	t      *testing.T
	rng    *rand.Rand
	seen   map[string]int
	w      *world
	dir    *disktest.Dir
	tier   *disk.Tier
	stop   context.CancelFunc
	done   chan error
	s      Session
	number uint64
	specs  []*kv.NamespaceSpec
	chunks []map[int]*tierChunk
	// generation, by namespace, differs for all that is stored after a reset.
	generation []uint64
	log        []string
	latest     int // the chunk that the latest put began with
}

const tierChunks = 90

func runMetamorphicTier(t *testing.T, seed uint64, seen map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		r := &tierRun{
			t: t, rng: rand.New(rand.NewPCG(seed, 2)), seen: seen, dir: &disktest.Dir{}, generation: []uint64{1, 1},
			w: newWorld(t, 4<<20), specs: []*kv.NamespaceSpec{testSpec("small", 8<<10, 2), testSpec("large", 120<<10, 1)},
		}
		for range r.specs {
			chunks := map[int]*tierChunk{}
			for n := range tierChunks {
				chunks[n] = &tierChunk{}
			}
			r.chunks = append(r.chunks, chunks)
		}
		defer func() {
			if t.Failed() {
				t.Logf("the last operations: %q", r.log[max(0, len(r.log)-200):])
				t.Logf("again with: go test ./store/embedded -run '^TestMetamorphicTier$' -metamorphic.seed=%d", seed)
			}
			r.unmount()
		}()
		r.mount()
		for range tierStepsPerRun {
			r.step()
			r.w.now = time.Now()
		}
		r.dir.SetFault(nil)
		r.loadAll()
		r.w.m.validate(t)
	})
}

// mount gives the master a tier that is in service, and opens a session.
func (r *tierRun) mount() {
	r.open()
	synctest.Wait()
}

func (r *tierRun) open() {
	tier, err := disk.New(r.dir, disk.Options{Bytes: disk.MinBytes, RegionBytes: 4 << 20, BufferBytes: 256 << 10, QueueBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.tier, r.stop, r.done = tier, stop, make(chan error, 1)
	go func() { r.done <- tier.Run(ctx) }()
	r.w.now = time.Now()
	r.w.m.SetTier(tier)
	r.number++
	r.s = r.w.open(1, r.number, 100, Declaration{})
}

func (r *tierRun) unmount() {
	r.stop()
	<-r.done
}

func (r *tierRun) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *tierRun) saw(event string) { r.seen[event]++ }

// step does one operation by chance.
func (r *tierRun) step() {
	r.w.m.Tick()
	which := r.rng.IntN(len(r.specs))
	ns := r.w.namespace(r.specs[which])
	switch n := r.rng.IntN(60); {
	case n < 26:
		r.put(which, ns, 1+r.rng.IntN(12))
		if r.rng.IntN(3) > 0 {
			synctest.Wait() // the disk keeps up
		}
	case n < 38:
		for range 6 {
			r.load(which, ns, r.rng.IntN(tierChunks))
		}
	case n < 41:
		r.report(which, ns)
	case n < 42:
		r.reset(which, ns)
	case n < 47:
		r.remove(which, ns)
	case n < 49:
		if _, err := r.w.m.Evict(EvictLimit{Chunks: 1 + r.rng.IntN(20)}); err != nil {
			r.t.Fatal(err)
		}
		r.note("evict")
	case n < 53:
		time.Sleep(time.Duration(r.rng.IntN(20)) * time.Second)
		r.note("pause")
	case n < 57:
		r.trouble()
	default:
		r.kill()
	}
	if r.rng.IntN(6) == 0 {
		r.w.m.validate(r.t)
	}
}

// fillTier writes a shard.
func (r *tierRun) fill(b []byte, which, chunk int, shard uint32, generation uint64) {
	(&chaos{}).fill(b, chunkID{space: which, n: chunk}, shard, generation)
}

// put stores whole chunks; what finds no room is given back.
func (r *tierRun) put(which int, ns store.Namespace, n int) {
	first, shards := r.rng.IntN(tierChunks), r.specs[which].Groups[0].Shards
	r.latest = first
	opts := &PutOptions{}
	expires := time.Time{}
	if r.rng.IntN(4) == 0 {
		opts.TTL = time.Duration(1+r.rng.IntN(60)) * time.Second
		expires = time.Now().Add(opts.TTL + 2*time.Second) // in whole seconds, in memory and on the disk
	}
	for i := first; i < min(first+n, tierChunks); i++ {
		items := make([]store.PutItem, shards)
		for shard := range items {
			items[shard] = store.PutItem{Hash: testHash(i), Shard: uint32(shard), Depth: uint32(i), Parent: testHash(i - 1)}
		}
		opts.SaltTag = tagOf(i)
		grants, err := r.w.m.PutStartAs(r.s, ns, opts, items)
		if err != nil {
			r.t.Fatal(err)
		}
		var commits []store.PutCommit
		var tickets []uint64
		for shard, g := range grants {
			if g.Status != store.PutGranted {
				continue
			}
			b := r.w.place(g.Place)
			r.fill(b, which, i, uint32(shard), r.generation[which])
			commits = append(commits, store.PutCommit{Ticket: g.Ticket, Checksum: (&chaos{w: r.w}).sum(g.Place)})
			tickets = append(tickets, g.Ticket)
		}
		r.note("put %d/%d: %d", which, i, len(tickets))
		if len(commits) < shards {
			if err := r.w.m.PutRevoke(r.s, tickets); err != nil {
				r.t.Fatal(err)
			}
			if c := r.chunks[which][i]; len(c.content) > 0 { // it has its time anew
				c.outlives(expires)
			}
			continue
		}
		published, err := r.w.m.PutEnd(r.s, commits)
		if err != nil || slices.Contains(published, false) {
			r.t.Fatalf("put_end: %v, %v", published, err)
		}
		c := r.chunks[which][i]
		if len(c.content) == 0 && len(c.again) == 0 {
			c.expires = expires
		}
		if !slices.Contains(c.content, r.generation[which]) {
			c.content = append(c.content, r.generation[which])
		}
		c.outlives(expires)
	}
}

// outlives: a copy may live as long as the longest of its puts said.
func (c *tierChunk) outlives(expires time.Time) {
	if expires.IsZero() || !c.expires.IsZero() && expires.After(c.expires) {
		c.expires = expires
	}
}

// mayBe tells whether a chunk may be served.
func (c *tierChunk) mayBe() bool {
	return len(c.content) > 0 && (c.expires.IsZero() || time.Now().Before(c.expires))
}

// load looks a chunk up, waits for it and compares its bytes.
func (r *tierRun) load(which int, ns store.Namespace, chunk int) bool {
	c := r.chunks[which][chunk]
	r.w.now = time.Now()
	r.w.m.Tick()
	hit := r.w.exists(ns, chunk)
	if hit && !c.mayBe() {
		r.t.Fatalf("a lookup hits chunk %d/%d, which is not there: %+v", which, chunk, *c)
	}
	holder := store.Lease{Engine: "e", Request: "r"}
	if hit {
		r.w.m.Grant(ns.ID, holder, []store.ChunkKey{{Hash: testHash(chunk)}}, time.Minute)
		defer r.w.m.ReleaseLeases("e", []string{"r"})
	}
	for shard := range r.specs[which].Groups[0].Shards {
		if !r.loadShard(which, ns, chunk, uint32(shard), holder) {
			if hit {
				r.saw("promised in vain")
				_ = r.w.m.ReportFailed(r.s, ns, []store.FailedChunk{{Hash: testHash(chunk)}})
			}
			return false
		}
	}
	return true
}

// loadShard loads one shard and compares its bytes.
func (r *tierRun) loadShard(which int, ns store.Namespace, chunk int, shard uint32, holder store.Lease) bool {
	c := r.chunks[which][chunk]
	began := time.Now()
	for {
		results, err := r.w.m.Get(r.s, ns, holder, []store.GetItem{{Hash: testHash(chunk), Shard: shard}})
		if err != nil {
			r.t.Fatal(err)
		}
		g := &results[0]
		if g.Status == store.GetLoading {
			if time.Since(began) > time.Minute {
				r.t.Fatalf("chunk %d/%d is loading for %v", which, chunk, time.Since(began))
			}
			time.Sleep(5 * time.Millisecond)
			r.w.now = time.Now()
			continue
		}
		if g.Status != store.GetReady {
			return false
		}
		if len(c.content) == 0 {
			r.t.Fatalf("chunk %d/%d is served, which is not there: %+v", which, chunk, *c)
		}
		r.checkBytes(which, chunk, shard, g)
		if g.Tier == store.TierDisk {
			r.saw("from disk")
		}
		if err := r.w.m.Release(r.s, []uint64{g.Ref}); err != nil {
			r.t.Fatal(err)
		}
		return true
	}
}

// checkBytes compares what a load got with what it may be.
func (r *tierRun) checkBytes(which, chunk int, shard uint32, g *store.GetResult) {
	got, want := r.w.place(g.Place), make([]byte, g.Place.Bytes)
	for generation := r.generation[which]; generation > 0; generation-- {
		if r.fill(want, which, chunk, shard, generation); !slices.Equal(got, want) {
			continue
		}
		if c := r.chunks[which][chunk]; !slices.Contains(c.content, generation) {
			r.t.Fatalf("chunk %d/%d shard %d: bytes of %d, want %+v", which, chunk, shard, generation, *c)
		}
		return
	}
	r.t.Fatalf("chunk %d/%d shard %d: wrong bytes (checksum fits: %v)", which, chunk, shard, (&chaos{w: r.w}).sum(g.Place) == g.Checksum)
}

// loadAll loads everything: with a disk that is well again, what was stored is
// there but for what was counted as lost.
func (r *tierRun) loadAll() {
	hits := 0
	for which, spec := range r.specs {
		ns := r.w.namespace(spec)
		for n := range tierChunks {
			if r.load(which, ns, n) {
				hits++
			} else if r.chunks[which][n].mayBe() {
				r.saw("lost")
			}
		}
	}
	r.seen["hits"] += hits
}

// report has a load reported as failed.
func (r *tierRun) report(which int, ns store.Namespace) {
	n, corrupt := r.rng.IntN(tierChunks), r.rng.IntN(2) == 0
	r.note("report %d/%d corrupt %v", which, n, corrupt)
	if err := r.w.m.ReportFailed(r.s, ns, []store.FailedChunk{{Hash: testHash(n), Corrupt: corrupt}}); err != nil {
		r.t.Fatal(err)
	}
	if corrupt { // a copy on the disk that is whole may be found again after a kill
		r.chunks[which][n].forgotten()
	}
}

// reset: nothing of before is served again, now or later, if the disk has taken
// note.
func (r *tierRun) reset(which int, ns store.Namespace) {
	r.note("reset %d", which)
	err := r.w.m.Reset(ns.ID)
	if err != nil && !errors.Is(err, disk.ErrUncertain) {
		r.t.Fatal(err)
	}
	r.saw("reset")
	r.generation[which]++
	for _, c := range r.chunks[which] {
		r.dropped(c, err)
	}
}

func (r *tierRun) dropped(c *tierChunk, err error) {
	if err == nil {
		*c = tierChunk{}
		return
	}
	r.saw("disk took no note")
	c.forgotten()
}

// forgotten: it is gone until a kill.
func (c *tierChunk) forgotten() {
	c.again = append(c.again, c.content...)
	c.content = nil
}

// trouble gives the disk faults for a while, or takes them away.
func (r *tierRun) trouble() {
	kind := r.rng.IntN(6)
	r.note("trouble %d", kind)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 3))
	r.dir.SetFault(func(disktest.Call) disktest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(3) > 0 {
			return disktest.Fault{}
		}
		switch kind {
		case 0:
			return disktest.Fault{Err: syscall.EIO, Done: rng.IntN(5000)}
		case 1:
			return disktest.Fault{Short: true, Done: rng.IntN(5000)}
		case 2:
			return disktest.Fault{Hang: time.Duration(rng.IntN(3000)) * time.Millisecond}
		}
		return disktest.Fault{}
	})
}

// kill is kill -9 of the master in the midst of the disk's work: its memory and
// the disk stay as they are at that instant.
func (r *tierRun) kill() {
	r.saw("killed")
	torn := r.rng.IntN(2) == 0
	var mu sync.Mutex
	var image *disktest.Dir
	cut := r.rng.IntN(200 << 10)
	r.dir.SetFault(func(c disktest.Call) disktest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Op == disktest.Write && torn && image == nil {
			return disktest.Fault{Done: cut, Torn: func(i *disktest.Dir) { image = i }}
		}
		return disktest.Fault{Hang: time.Second}
	})
	which := r.rng.IntN(len(r.specs))
	r.put(which, r.w.namespace(r.specs[which]), 12)
	if _, err := r.w.m.Prefetch(r.w.namespace(r.specs[which]).ID, []store.ChunkKey{{Hash: testHash(r.rng.IntN(tierChunks))}}); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait() // all of the disk's calls hang, none moves bytes
	memory := slices.Clone(r.w.mem)
	mu.Lock()
	left := image
	mu.Unlock()
	if left == nil {
		left = r.dir.Clone()
	}
	r.note("kill, torn %v", torn)
	r.unmount()
	r.w.mem, r.dir = memory, left
	r.w.now = time.Now()
	r.w.crash()
	for _, chunks := range r.chunks {
		for _, c := range chunks {
			c.content, c.again = append(c.content, c.again...), nil
		}
	}
	// Now and then it is asked for something before it knows what it has.
	early := r.rng.IntN(4) == 0
	if early {
		hang := time.Duration(1+r.rng.IntN(100)) * time.Millisecond
		r.dir.SetFault(func(disktest.Call) disktest.Fault { return disktest.Fault{Hang: hang} })
	}
	r.open()
	if early {
		time.Sleep(time.Duration(r.rng.IntN(500)) * time.Millisecond)
		r.saw("removed early")
		which := r.rng.IntN(len(r.specs))
		r.remove(which, r.w.namespace(r.specs[which]))
		r.dir.SetFault(nil)
	}
	synctest.Wait()
}
