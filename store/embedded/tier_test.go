package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// diskWorld is a world with a disk tier, inside a bubble.
type diskWorld struct {
	*world
	dir  *disktest.Dir
	opts disk.Options
	tier *disk.Tier
	stop context.CancelFunc
	done chan error
}

func newDiskWorld(t *testing.T, dataBytes uint64, dir *disktest.Dir, opts disk.Options) *diskWorld {
	t.Helper()
	d := &diskWorld{world: newWorld(t, dataBytes), dir: dir, opts: opts}
	d.now = time.Now()
	d.mount()
	return d
}

func smallDisk() disk.Options {
	return disk.Options{Bytes: 257 << 20, RegionBytes: 16 << 20, BufferBytes: 1 << 20, QueueBytes: 16 << 20, Log: slog.New(slog.DiscardHandler)}
}

// mount gives the master a tier.
func (d *diskWorld) mount() {
	tier, err := disk.New(d.dir, d.opts)
	if err != nil {
		d.tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.tb.Cleanup(stop)
	d.tier, d.stop, d.done = tier, stop, make(chan error, 1)
	go func() { d.done <- tier.Run(ctx) }()
	d.m.SetTier(tier)
	synctest.Wait()
}

func (d *diskWorld) unmount() {
	d.tb.Helper()
	d.stop()
	if err := <-d.done; err != nil {
		d.tb.Errorf("the tier ended with %v", err)
	}
}

// reboot loses the memory and keeps the disk.
func (d *diskWorld) reboot() {
	d.unmount()
	next := newWorld(d.tb, uint64(d.m.seg.Slabs)*d.m.seg.SlabBytes)
	next.now = time.Now()
	d.world = next
	d.mount()
}

// load looks a chunk up and loads all of its shards. Wrong bytes fail the test;
// errLost is a promise that was not kept, after a time that a load would wait.
func (d *diskWorld) load(s Session, ns store.Namespace, chunk, shards int) error {
	d.tb.Helper()
	if !d.exists(ns, chunk) {
		return errMiss
	}
	holder := store.Lease{Engine: "engine", Request: fmt.Sprint(chunk)}
	d.m.Grant(ns.ID, holder, []store.ChunkKey{{Hash: testHash(chunk)}}, time.Minute)
	defer d.m.ReleaseLeases("engine", []string{fmt.Sprint(chunk)})
	for shard := range shards {
		var r store.GetResult
		for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
			d.now = time.Now()
			results, err := d.m.Get(s, ns, holder, []store.GetItem{{Hash: testHash(chunk), Shard: uint32(shard)}})
			if err != nil {
				d.tb.Fatal(err)
			}
			if r = results[0]; r.Status != store.GetLoading {
				break
			}
			if waited := time.Since(began); waited > 10*time.Second {
				d.tb.Fatalf("chunk %d is loading for %v", chunk, waited)
			}
		}
		if r.Status != store.GetReady {
			_ = d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(chunk)}})
			return errLost
		}
		want := make([]byte, r.Place.Bytes)
		fillShard(want, chunk, shard)
		if !bytes.Equal(d.place(r.Place), want) || crc32.Checksum(want, castagnoli) != r.Checksum {
			d.tb.Fatalf("chunk %d shard %d: wrong bytes", chunk, shard)
		}
		if err := d.m.Release(s, []uint64{r.Ref}); err != nil {
			d.tb.Fatal(err)
		}
	}
	return nil
}

var (
	errMiss = errors.New("miss")
	errLost = errors.New("promised and lost")
)

// family is the chunks of one model.
type family struct {
	ns              store.Namespace
	shards, bytes   int
	first, perRound int
}

func (d *diskWorld) families() []family {
	var out []family
	for i, size := range []struct{ shards, bytes, n int }{{1, 4 << 10, 1000}, {8, 16 << 10, 120}, {2, 500_000, 40}, {2, 2 << 20, 34}} {
		out = append(out, family{
			ns:     d.namespace(testSpec(fmt.Sprint("m", i), size.bytes, size.shards)),
			shards: size.shards, bytes: size.bytes, first: i * 10_000, perRound: size.n,
		})
	}
	return out
}

// TestThreeTimesTheMemory: what memory has no room for is served from the disk,
// whatever its size, after restarts too.
func TestThreeTimesTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 64<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		total := 0
		families := d.families()
		for _, f := range families {
			total += f.perRound * f.shards * f.bytes
		}
		if total < 3*64<<20 {
			t.Fatalf("the working set has %d bytes", total)
		}
		// In random order, so that every size has its memory when it is short.
		type item struct {
			f family
			i int
		}
		var items []item
		for _, f := range families {
			for i := range f.perRound {
				items = append(items, item{f, i})
			}
		}
		random := rand.New(rand.NewPCG(5, 5))
		random.Shuffle(len(items), func(a, b int) { items[a], items[b] = items[b], items[a] })
		for n, it := range items {
			for shard := range it.f.shards {
				if got := d.store(s, it.f.ns, it.f.first+it.i, shard); got != store.PutGranted {
					t.Fatalf("put of chunk %d: %v", it.f.first+it.i, got)
				}
			}
			synctest.Wait() // the disk keeps up
			if n%100 == 0 {
				d.m.validate(t)
			}
		}
		check := func(when string, rounds int, least float64) {
			t.Helper()
			hits, all := 0, 0
			for round := range rounds {
				for _, f := range d.families() {
					for _, i := range rand.New(rand.NewPCG(uint64(round), 9)).Perm(f.perRound) {
						all += f.shards * f.bytes
						switch err := d.load(s, f.ns, f.first+i, f.shards); err {
						case nil:
							hits += f.shards * f.bytes
						case errLost:
							t.Errorf("%s: chunk %d was promised and lost", when, f.first+i)
						}
					}
				}
				d.m.validate(t)
			}
			if float64(hits) < least*float64(all) {
				t.Errorf("%s: %d of %d bytes hit; %+v, %+v", when, hits, all, d.m.Stats().Tiers, d.tier.Stats())
			}
		}
		check("at first", 2, 0.95)
		t.Logf("%+v", d.m.Stats().Tiers)
		if st := d.m.Stats(); st.Tiers.Promoted == 0 || st.Tiers.Hits == 0 || st.Tiers.Clean == 0 || st.Removed[RemovedDemoted] == 0 {
			t.Errorf("nothing came from the disk: %+v", st.Tiers)
		}
		d.unmount()
		d.crash()
		d.mount()
		s = d.open(1, 2, 100, Declaration{})
		check("after kill -9", 1, 0.95)
		d.reboot()
		s = d.open(1, 1, 100, Declaration{})
		check("after a reboot", 1, 0.9)
		d.unmount()
	})
}

// TestPutsDoNotWaitForTheDisk: when the disk does not keep up, memory behaves as
// without one, and nothing wrong is served.
func TestPutsDoNotWaitForTheDisk(t *testing.T) {
	for name, fault := range map[string]disktest.Fault{
		"slow":   {Hang: 500 * time.Millisecond},
		"hangs":  {Hang: 30 * time.Second},
		"fails":  {Err: syscall.EIO},
		"full":   {Err: syscall.ENOSPC},
		"shorts": {Short: true, Done: 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
				s := d.open(1, 1, 100, Declaration{})
				ns := d.namespace(testSpec("m", 128<<10, 2))
				end := time.Now().Add(30 * time.Second)
				d.dir.SetFault(func(c disktest.Call) disktest.Fault {
					if (c.Op == disktest.Write || c.Op == disktest.Read) && time.Now().Before(end) {
						return fault
					}
					return disktest.Fault{}
				})
				began := time.Now()
				next := 0
				put := func(n int) {
					for range n {
						for shard := range 2 {
							if got := d.store(s, ns, next, shard); got != store.PutGranted {
								t.Fatalf("put of chunk %d: %v", next, got)
							}
						}
						next++
					}
				}
				put(400) // six times the memory
				if took := time.Since(began); took != 0 {
					t.Errorf("puts took %v", took)
				}
				for range 40 {
					put(5)
					for i := next - 20; i < next; i++ {
						if err := d.load(s, ns, i, 2); err != nil && name != "slow" && i > next-10 {
							t.Fatalf("chunk %d of %d is gone: %v", i, next, err)
						}
					}
					d.m.validate(t)
					time.Sleep(time.Second)
				}
				if st := d.m.Stats().Tiers; st.Lost == 0 {
					t.Errorf("nothing was counted as lost: %+v", st)
				}
				time.Sleep(5 * time.Minute)
				d.now = time.Now()
				before := d.m.Stats().Tiers.Demoted
				for range 100 {
					put(1)
					synctest.Wait()
				}
				if d.m.Stats().Tiers.Demoted == before {
					t.Error("nothing goes down although the disk is well again")
				}
				hits := 0
				for i := range next {
					if d.load(s, ns, i, 2) == nil {
						hits++
					}
				}
				if hits < 100 {
					t.Errorf("%d hits at the end", hits)
				}
				d.m.validate(t)
				d.unmount()
			})
		})
	}
}

// TestPromotionFromABadDisk: a load of a chunk that the disk does not bring is
// told so in time, and the next lookup does not promise it.
func TestPromotionFromABadDisk(t *testing.T) {
	for name, fault := range map[string]disktest.Fault{
		"hangs": {Hang: 30 * time.Second}, "fails": {Err: syscall.EIO}, "shorts": {Short: true, Done: 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
				s := d.open(1, 1, 100, Declaration{})
				ns := d.namespace(testSpec("m", 256<<10, 1))
				for i := range 200 {
					d.store(s, ns, i, 0)
					synctest.Wait()
				}
				end := time.Now().Add(30 * time.Second)
				d.dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == disktest.Read && time.Now().Before(end) {
						return fault
					}
					return disktest.Fault{}
				})
				began := time.Now()
				lost := 0
				for i := range 20 {
					if err := d.load(s, ns, i, 1); err == errLost {
						lost++
						if d.exists(ns, i) {
							t.Errorf("chunk %d is promised again", i)
						}
					}
				}
				if took := time.Since(began); lost == 0 || lost > 5 || took > 5*time.Second {
					t.Errorf("%d loads were lost in %v", lost, took)
				}
				if st := d.m.Stats(); st.OpenPuts != 0 || len(d.m.lower.coming) != 0 {
					t.Errorf("%d puts and %d promotions are left", st.OpenPuts, len(d.m.lower.coming))
				}
				d.m.validate(t)
				time.Sleep(2 * time.Minute)
				d.now = time.Now()
				back := 0
				for i := range 20 {
					if d.load(s, ns, i, 1) == nil {
						back++
					}
				}
				if back < 15 {
					t.Errorf("%d of 20 are back when the disk is well again", back)
				}
				d.m.validate(t)
				d.unmount()
			})
		})
	}
}

// TestResetAndRemoveReachTheDisk: on its way down, on the disk, and on its way up.
func TestResetAndRemoveReachTheDisk(t *testing.T) {
	for name, remove := range map[string]func(d *diskWorld, ns store.Namespace) error{
		"reset": func(d *diskWorld, ns store.Namespace) error { return d.m.Reset(ns.ID) },
		"namespace": func(d *diskWorld, ns store.Namespace) error {
			return second(d.m.Remove(d.tb.Context(), Scope{Namespace: &ns.ID}))
		},
		"everything": func(d *diskWorld, _ store.Namespace) error {
			return second(d.m.Remove(d.tb.Context(), Scope{Everything: true}))
		},
		"hashes": func(d *diskWorld, ns store.Namespace) error {
			var hashes []kv.Hash
			for i := range 210 {
				hashes = append(hashes, testHash(i))
			}
			return second(d.m.Remove(d.tb.Context(), Scope{Namespace: &ns.ID, Hashes: hashes}))
		},
		"tag": func(d *diskWorld, _ store.Namespace) error {
			tag := "tenant"
			return second(d.m.Remove(d.tb.Context(), Scope{SaltTag: &tag}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
				s := d.open(1, 1, 100, Declaration{})
				spec := testSpec("m", 256<<10, 1)
				ns := d.namespace(spec)
				for i := range 200 {
					if got := d.storeAs(s, ns, PutOptions{SaltTag: "tenant"}, i); got != store.PutGranted {
						t.Fatalf("put: %v", got)
					}
					synctest.Wait()
				}
				hold := make(chan struct{})
				d.dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == disktest.Read || c.Op == disktest.Write && c.Bytes > disk.PageBytes {
						<-hold
					}
					return disktest.Fault{}
				})
				for i := 200; i < 210; i++ {
					d.storeAs(s, ns, PutOptions{SaltTag: "tenant"}, i)
				}
				if n, err := d.m.Prefetch(ns.ID, []store.ChunkKey{{Hash: testHash(0)}, {Hash: testHash(1)}}); n != 2 || err != nil {
					t.Fatalf("Prefetch() = %d, %v", n, err)
				}
				synctest.Wait()
				if len(d.m.lower.coming) != 2 || d.tier.Stats().QueuedBytes == 0 {
					t.Fatal("nothing is on its way")
				}
				go func() { time.Sleep(10 * time.Millisecond); close(hold) }()
				if err := remove(d, ns); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond)
				gone := func(when string) {
					t.Helper()
					ns := d.namespace(spec)
					for i := range 210 {
						if d.exists(ns, i) {
							t.Errorf("%s: chunk %d is there", when, i)
						}
					}
					d.m.validate(t)
				}
				gone("at once")
				if st := d.m.Stats(); st.OpenPuts != 0 || len(d.m.lower.coming) != 0 || len(d.m.lower.moves) != 0 {
					t.Errorf("%d puts, %d promotions, %d moves are left", st.OpenPuts, len(d.m.lower.coming), len(d.m.lower.moves))
				}
				d.dir = d.dir.Clone() // kill -9 of a machine
				old := d.stop
				d.world = newWorld(t, 16<<20)
				d.mount()
				gone("after a restart")
				d.unmount()
				old()
			})
		})
	}
}
