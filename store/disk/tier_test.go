package disk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// testOptions are of a small tier: 8 regions of 8 MiB, buffers of 1 MiB.
func testOptions() disk.Options {
	return disk.Options{
		Bytes: 65 << 20, RegionBytes: 8 << 20, BufferBytes: 1 << 20,
		Log: slog.New(slog.DiscardHandler),
	}
}

// tier is a tier that runs.
type tier struct {
	*disk.Tier
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// start runs a tier, inside a bubble.
func start(t *testing.T, dir disk.Dir, opts disk.Options) *tier {
	t.Helper()
	inner, err := disk.New(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	r := &tier{Tier: inner, t: t, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- inner.Run(ctx) }()
	synctest.Wait()
	return r
}

// end stops the tier.
func (r *tier) end() {
	r.t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		r.t.Errorf("Run() = %v", err)
	}
}

// content makes the shards of chunk i, which tell whose they are.
func content(i, shards, shardBytes int) [][]byte {
	out := make([][]byte, shards)
	for s := range out {
		out[s] = make([]byte, shardBytes)
		r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(s)})
		_, _ = io.ReadFull(r, out[s])
	}
	return out
}

func keyFor(i int) disk.Key {
	k := disk.Key{Namespace: [32]byte{1: 7, 9: 9}, Group: uint16(i % 3)}
	binary.LittleEndian.PutUint64(k.Hash[:], uint64(i)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(k.Hash[16:], uint64(i))
	return k
}

func chunkFor(i int, source [][]byte) disk.Chunk {
	c := disk.Chunk{Key: keyFor(i), Parent: uint64(i), Depth: uint32(i), Tag: fmt.Sprint("tag", i%2), ShardBytes: uint32(len(source[0]))}
	for _, shard := range source {
		c.Checksums = append(c.Checksums, crc32.Checksum(shard, castagnoli))
	}
	return c
}

// put demotes chunk i and returns what done was told; an error also when the tier
// did not take it.
func (r *tier) put(i, shards, shardBytes int) error {
	source := content(i, shards, shardBytes)
	done := make(chan error, 1)
	if !r.Demote(chunkFor(i, source), source, func(err error) { done <- err }) {
		return errors.New("refused")
	}
	return <-done
}

func (r *tier) mustPut(i, shards, shardBytes int) {
	r.t.Helper()
	if err := r.put(i, shards, shardBytes); err != nil {
		r.t.Fatalf("demote chunk %d: %v", i, err)
	}
}

var errMiss = errors.New("not there")

// get fetches chunk i. Whatever is served is checked.
func (r *tier) get(i, shards, shardBytes int) error {
	r.t.Helper()
	key := keyFor(i)
	if _, ok := r.Has(&key); !ok {
		return errMiss
	}
	into := make([][]byte, shards)
	for s := range into {
		into[s] = make([]byte, shardBytes)
	}
	done := make(chan error, 1)
	var got *disk.Chunk
	if !r.Fetch(key, into, func(c *disk.Chunk, err error) { got = c; done <- err }) {
		return errMiss
	}
	if err := <-done; err != nil {
		return err
	}
	want := content(i, shards, shardBytes)
	for s := range want {
		if !bytes.Equal(into[s], want[s]) {
			r.t.Fatalf("chunk %d shard %d: wrong bytes were served", i, s)
		}
	}
	if c := chunkFor(i, want); got.Key != c.Key || got.Parent != c.Parent || got.Depth != c.Depth || got.Tag != c.Tag {
		r.t.Fatalf("chunk %d came back as %+v", i, got)
	}
	return nil
}

func (r *tier) mustGet(i, shards, shardBytes int) {
	r.t.Helper()
	if err := r.get(i, shards, shardBytes); err != nil {
		r.t.Fatalf("fetch chunk %d: %v", i, err)
	}
}

func (r *tier) mustMiss(i int) {
	r.t.Helper()
	key := keyFor(i)
	if _, ok := r.Has(&key); ok {
		r.t.Fatalf("chunk %d is still there", i)
	}
}

var sizes = []struct{ shards, bytes int }{{1, 4096}, {1, 4 << 20}, {8, 4096}, {3, 100_000}, {8, 700_001}, {1, 1}, {64, 512}, {1, 1<<20 - 512}, {1, 1<<20 - 511}}

// TestRoundTrip: what was written is read, after a restart too.
func TestRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i, s := range sizes {
			r.mustMiss(i)
			r.mustPut(i, s.shards, s.bytes)
		}
		for range 2 {
			for i, s := range sizes {
				r.mustGet(i, s.shards, s.bytes)
			}
			if n := r.Stats().Chunks; n != len(sizes) {
				t.Fatalf("%d chunks, want %d", n, len(sizes))
			}
			r.end()
			r = start(t, dir, testOptions())
		}
		if s := r.Stats(); s.RecoveredChunks != uint64(len(sizes)) || s.DroppedOnes != 0 {
			t.Fatalf("recovered %+v", s)
		}
		r.end()
	})
}

// TestManySmallOnesAtOnce are written with few calls.
func TestManySmallOnesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		const n = 500
		var open sync.WaitGroup
		for i := range n {
			source := content(i, 1, 4096)
			open.Add(1)
			if !r.Demote(chunkFor(i, source), source, func(err error) {
				if err != nil {
					t.Errorf("chunk %d: %v", i, err)
				}
				open.Done()
			}) {
				t.Fatalf("chunk %d was refused", i)
			}
		}
		open.Wait()
		for i := range n {
			r.mustGet(i, 1, 4096)
		}
		if calls := dir.Calls(disktest.Write); calls > 100 {
			t.Errorf("%d writes for %d chunks of 8 KiB", calls, n)
		}
		r.end()
		r = start(t, dir.Clone(), testOptions())
		for i := range n {
			r.mustGet(i, 1, 4096)
		}
		r.end()
	})
}

// TestOldRegionsGo: a tier that is full gives up the region that was used least
// recently.
func TestOldRegionsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &disktest.Dir{}, testOptions())
		// Three chunks of 2 MiB a region; eight regions.
		const shard = 2 << 20
		for i := range 24 {
			r.mustPut(i, 1, shard)
		}
		for i := range 3 {
			r.mustGet(i, 1, shard) // the first region is used
		}
		for i := 24; i < 30; i++ {
			r.mustPut(i, 1, shard)
		}
		for i := range 30 {
			if i >= 3 && i < 9 {
				r.mustMiss(i)
			} else {
				r.mustGet(i, 1, shard)
			}
		}
		if s := r.Stats(); s.Evicted != 6 || s.Chunks != 24 {
			t.Errorf("%d evicted, %d there", s.Evicted, s.Chunks)
		}
		r.end()
	})
}

// TestKilledAtAnyWrite: whatever part of whichever write has reached the disk, the
// next start serves what is whole and nothing else.
func TestKilledAtAnyWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		var images []*disktest.Dir
		random := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		dir.Fault = func(c disktest.Call) disktest.Fault {
			if c.Op != disktest.Write {
				return disktest.Fault{}
			}
			mu.Lock()
			defer mu.Unlock()
			return disktest.Fault{Done: random.IntN(c.Bytes + 1), Torn: func(image *disktest.Dir) { images = append(images, image) }}
		}
		opts := testOptions()
		opts.Bytes, opts.RegionBytes = 9<<20, 1<<20 // regions are used again
		r := start(t, dir, opts)
		size := func(i int) (int, int) { return 1 + i%3, []int{4096, 50_000, 250_001}[i%3] }
		const n = 60
		written := make([]int, 0, n) // images when chunk i had been written
		for i := range n {
			shards, bytes := size(i)
			r.mustPut(i, shards, bytes)
			mu.Lock()
			written = append(written, len(images))
			mu.Unlock()
		}
		r.end()
		served := 0
		for k, image := range images {
			r := start(t, image, opts)
			for i := range n {
				shards, bytes := size(i)
				err := r.get(i, shards, bytes)
				if err == nil {
					served++
				} else if !errors.Is(err, errMiss) {
					t.Errorf("image %d: chunk %d was promised: %v", k, i, err)
				}
				// The last few before the kill are there.
				if err != nil && k > written[i] && k <= written[min(i+3, n-1)] {
					t.Errorf("image %d: chunk %d is lost", k, i)
				}
			}
			r.mustPut(n+k, 1, 4096) // and it goes on
			r.mustGet(n+k, 1, 4096)
			r.end()
		}
		if len(images) < n || served < len(images)*5 {
			t.Errorf("%d images, %d chunks served", len(images), served)
		}
	})
}

// TestReset: what was reset does not come back, by no restart.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		other := content(2, 1, 4096)
		c := chunkFor(2, other)
		c.Namespace[0] = 99
		done := make(chan error, 1)
		r.Demote(c, other, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// One more waits to be written when the reset comes.
		hold := make(chan struct{})
		dir.SetFault(func(call disktest.Call) disktest.Fault {
			if call.Op == disktest.Write {
				<-hold
			}
			return disktest.Fault{}
		})
		late := content(3, 1, 4096)
		r.Demote(chunkFor(3, late), late, func(err error) { done <- err })
		synctest.Wait()
		r.Reset(keyFor(1).Namespace)
		r.mustMiss(1)
		close(hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := r.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.mustMiss(3)
		after := dir.Clone()
		r.mustPut(1, 1, 4096) // stored again, after the reset
		r.mustGet(1, 1, 4096)
		r.end()
		for _, image := range []*disktest.Dir{after, dir} {
			r = start(t, image, testOptions())
			if image == after {
				r.mustMiss(1)
			} else {
				r.mustGet(1, 1, 4096)
			}
			r.mustMiss(3)
			if _, ok := r.Has(&c.Key); !ok {
				t.Error("another namespace was reset too")
			}
			r.end()
		}
	})
}

// TestResetThatIsNotNoted: a reset that the disk does not take is not
// acknowledged, and a restart that finds traces of it trusts nothing from before.
func TestResetThatIsNotNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.WriteFile {
				return disktest.Fault{Err: syscall.EIO}
			}
			return disktest.Fault{}
		})
		r.Reset(keyFor(1).Namespace)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Settle(ctx); !errors.Is(err, disk.ErrUncertain) {
			t.Fatalf("Settle() = %v", err)
		}
		r.mustPut(2, 1, 4096)
		killed := dir.Clone()
		dir.SetFault(nil)
		time.Sleep(time.Minute)
		if err := r.Settle(t.Context()); err != nil {
			t.Fatalf("the reset was not noted in the end: %v", err)
		}
		r.end()
		r = start(t, killed, testOptions())
		r.mustMiss(1)
		r.mustGet(2, 1, 4096)
		r.end()
	})
}

// TestForget: single chunks, by key and by tag.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 10 {
			r.mustPut(i, 1, 4096)
		}
		r.Forget(keyFor(4), keyFor(1000))
		r.mustMiss(4)
		ns := [32]byte{250}
		if n := r.ForgetTag(&ns, "tag1"); n != 0 {
			t.Errorf("%d chunks of a namespace that there is not", n)
		}
		if n := r.ForgetTag(nil, "tag1"); n != 5 {
			t.Errorf("%d chunks with the tag, want 5", n)
		}
		if err := r.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		killed := dir.Clone()
		r.end()
		r = start(t, killed, testOptions())
		for i := range 10 {
			if i == 4 || i%2 == 1 {
				r.mustMiss(i)
			} else {
				r.mustGet(i, 1, 4096)
			}
		}
		r.end()
	})
}

// TestDamage: flipped bits anywhere in the file are misses.
func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		const n = 40
		for i := range n {
			r.mustPut(i, 2, 30_000)
		}
		random := rand.New(rand.NewPCG(3, 4))
		dir.Data(func(data []byte) []byte {
			for range 60 {
				data[1<<20+random.IntN(n*64<<10)] ^= 1 << random.IntN(8)
			}
			return data
		})
		lost := 0
		for i := range n {
			if err := r.get(i, 2, 30_000); errors.Is(err, disk.ErrDamaged) {
				lost++
				r.mustMiss(i)
			} else if err != nil {
				t.Errorf("chunk %d: %v", i, err)
			}
		}
		s := r.Stats()
		if lost == 0 || lost == n || s.Errors[disk.KindDamaged] != uint64(lost) || !s.InService {
			t.Errorf("%d of %d lost, %+v", lost, n, s)
		}
		r.end()
		r = start(t, dir, testOptions())
		for i := range n {
			if err := r.get(i, 2, 30_000); err != nil && !errors.Is(err, disk.ErrDamaged) && !errors.Is(err, errMiss) {
				t.Errorf("chunk %d: %v", i, err)
			}
		}
		r.end()
	})
}

// TestSourceThatIsDamaged is not written.
func TestSourceThatIsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &disktest.Dir{}, testOptions())
		for i, bytes := range []int{4096, 3 << 20} {
			source := content(i, 2, bytes)
			c := chunkFor(i, source)
			source[1][bytes/2] ^= 1
			done := make(chan error, 1)
			if !r.Demote(c, source, func(err error) { done <- err }) {
				t.Fatal("refused")
			}
			if err := <-done; !errors.Is(err, disk.ErrSource) {
				t.Errorf("%d bytes: %v", bytes, err)
			}
			r.mustMiss(i)
		}
		r.mustPut(5, 1, 4096)
		r.mustGet(5, 1, 4096)
		r.end()
	})
}

// TestFull: a disk without room keeps the tier small, and in service.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{Room: 1<<20 + 3*8<<20 + 4<<20}
		r := start(t, dir, testOptions())
		const shard = 2 << 20
		for i := range 30 {
			r.mustPut(i, 1, shard)
		}
		for i := 24; i < 30; i++ {
			r.mustGet(i, 1, shard)
		}
		r.mustMiss(0)
		s := r.Stats()
		if s.UsedBytes != 3*8<<20 || s.Errors[disk.KindFull] == 0 || !s.InService {
			t.Errorf("%+v", s)
		}
		r.end()
	})
}

// TestFullAtWrite: a file system that reserves nothing.
func TestFullAtWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		full := func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write {
				return disktest.Fault{Err: syscall.ENOSPC}
			}
			return disktest.Fault{}
		}
		dir.SetFault(full)
		if err := r.put(2, 1, 4096); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("demote to a full disk: %v", err)
		}
		calls := dir.Calls(disktest.Write)
		if err := r.put(3, 1, 4096); err == nil || dir.Calls(disktest.Write) != calls {
			t.Errorf("a full disk was written to again at once: %v", err)
		}
		r.mustGet(1, 1, 4096) // what is there is served
		dir.SetFault(nil)
		time.Sleep(time.Minute)
		r.mustPut(3, 1, 4096)
		r.mustGet(3, 1, 4096)
		r.end()
	})
}

// TestErrors: a disk that fails is left alone, and taken back after a probe.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		op   disktest.Op
		f    disktest.Fault
		kind disk.ErrorKind
	}{
		{"read error", disktest.Read, disktest.Fault{Err: syscall.EIO, Done: 100}, disk.KindIO},
		{"short read", disktest.Read, disktest.Fault{Short: true, Done: 100}, disk.KindShort},
		{"write error", disktest.Write, disktest.Fault{Err: syscall.EIO, Done: 2000}, disk.KindIO},
		{"short write", disktest.Write, disktest.Fault{Short: true, Done: 2000}, disk.KindShort},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				for i := range 20 {
					r.mustPut(i, 1, 8192)
				}
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == test.op {
						return test.f
					}
					return disktest.Fault{}
				})
				for i := range 10 {
					if test.op == disktest.Read {
						if err := r.get(i, 1, 8192); err == nil {
							t.Errorf("chunk %d was read", i)
						}
					} else if err := r.put(100+i, 1, 8192); err == nil {
						t.Errorf("chunk %d was written", i)
					}
				}
				s := r.Stats()
				if s.InService || s.Opened != 1 || s.Errors[test.kind] != 3 {
					t.Errorf("after ten calls that failed: %+v", s)
				}
				r.mustMiss(15) // it is not even asked
				time.Sleep(10 * time.Minute)
				if s := r.Stats(); s.InService {
					t.Error("it is in service although probes fail")
				}
				dir.SetFault(nil)
				time.Sleep(2 * time.Minute)
				if !r.Stats().InService {
					t.Fatal("it did not come back")
				}
				r.mustGet(15, 1, 8192)
				r.mustPut(200, 1, 8192)
				r.end()
				r = start(t, dir, testOptions())
				for i := range 220 {
					// A write that failed half way may have left its header.
					if err := r.get(i, 1, 8192); err != nil && !errors.Is(err, errMiss) && !errors.Is(err, disk.ErrDamaged) {
						t.Errorf("chunk %d: %v", i, err)
					}
				}
				r.mustGet(15, 1, 8192)
				r.mustGet(200, 1, 8192)
				r.end()
			})
		})
	}
}

// TestHang: a disk that hangs for 30 seconds is left within its deadline, blocks
// nobody, and is taken back.
func TestHang(t *testing.T) {
	for _, op := range []disktest.Op{disktest.Read, disktest.Write} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				opts := testOptions()
				r := start(t, dir, opts)
				for i := range 40 {
					r.mustPut(i, 1, 8192)
				}
				// Every call begun in the 30 seconds returns at their end.
				end := time.Now().Add(30 * time.Second)
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if left := time.Until(end); c.Op == op && left > 0 {
						return disktest.Fault{Hang: left}
					}
					return disktest.Fault{}
				})
				var open sync.WaitGroup
				began := time.Now()
				for i := range 40 {
					into := [][]byte{make([]byte, 8192)}
					open.Add(1)
					taken := false
					done := func(err error) {
						if took := time.Since(began); took > 3*time.Second {
							t.Errorf("chunk %d was answered after %v", i, took)
						}
						open.Done()
					}
					if op == disktest.Read {
						taken = r.Fetch(keyFor(i), into, func(_ *disk.Chunk, err error) { done(err) })
					} else {
						source := content(100+i, 1, 8192)
						taken = r.Demote(chunkFor(100+i, source), source, done)
					}
					if !taken {
						t.Errorf("chunk %d was refused", i)
						open.Done()
					}
				}
				open.Wait()
				if s := r.Stats(); s.InService || s.Errors[disk.KindTimeout] == 0 {
					t.Errorf("the disk hangs, and is in service: %+v", s)
				}
				for range 10 {
					r.mustMiss(20)
					if r.Fetch(keyFor(20), [][]byte{make([]byte, 8192)}, func(*disk.Chunk, error) { t.Error("called") }) {
						t.Error("a fetch was taken")
					}
					if err := r.put(500, 1, 8192); err == nil {
						t.Error("a demotion was taken")
					}
					time.Sleep(time.Second)
				}
				time.Sleep(3 * time.Minute)
				if !r.Stats().InService {
					t.Fatal("it did not come back")
				}
				for i := range 40 {
					r.mustGet(i, 1, 8192)
				}
				r.mustPut(600, 1, 8192)
				r.end()
			})
		})
	}
}

// TestHangAtEnd: a call that never returns does not hold up the daemon's end.
func TestHangAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				return disktest.Fault{Hang: time.Hour}
			}
			return disktest.Fault{}
		})
		done := make(chan error, 1)
		if !r.Fetch(keyFor(1), [][]byte{make([]byte, 4096)}, func(_ *disk.Chunk, err error) { done <- err }) {
			t.Fatal("refused")
		}
		r.stop()
		began := time.Now()
		if err := <-r.done; err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("Run() = %v after %v", err, time.Since(began))
		}
		if err := <-done; err == nil {
			t.Error("the fetch was answered well")
		}
		time.Sleep(2 * time.Hour) // the call returns; the bubble wants all to end
	})
}

// TestHangAtStart: neither opening nor looking through the file holds up anybody.
func TestHangAtStart(t *testing.T) {
	for _, op := range []disktest.Op{disktest.Open, disktest.ReadFile, disktest.Read, disktest.Allocate} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				if op != disktest.Allocate {
					r := start(t, dir, testOptions())
					r.mustPut(1, 1, 4096)
					r.end()
				}
				end := time.Now().Add(time.Minute)
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if left := time.Until(end); c.Op == op && left > 0 {
						return disktest.Fault{Hang: left}
					}
					return disktest.Fault{}
				})
				r := start(t, dir, testOptions())
				r.mustMiss(1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				r.Reset([32]byte{42})
				if err := r.Settle(ctx); err == nil {
					t.Error("a reset was acknowledged that nobody noted")
				}
				time.Sleep(10 * time.Minute)
				if op != disktest.Allocate {
					r.mustGet(1, 1, 4096)
				}
				r.mustPut(2, 1, 4096)
				if err := r.Settle(t.Context()); err != nil {
					t.Error(err)
				}
				r.end()
			})
		})
	}
}

// TestFilesThatDoNotFit: the tier starts empty, and works.
func TestFilesThatDoNotFit(t *testing.T) {
	for name, spoil := range map[string]func(dir *disktest.Dir, opts *disk.Options){
		"other format": func(dir *disktest.Dir, _ *disk.Options) { dir.Data(func(b []byte) []byte { b[8]++; return b }) },
		"no superblock": func(dir *disktest.Dir, _ *disk.Options) {
			dir.Data(func(b []byte) []byte { clear(b[:4096]); return b })
		},
		"cut to nothing":     func(dir *disktest.Dir, _ *disk.Options) { dir.Data(func(b []byte) []byte { return b[:100] }) },
		"resets are missing": func(dir *disktest.Dir, _ *disk.Options) { dir.Remove("resets.mcs") },
		"resets are torn":    func(dir *disktest.Dir, _ *disk.Options) { _ = dir.WriteFile("resets.mcs", []byte("MCSDRST")) },
		"far smaller":        func(_ *disktest.Dir, o *disk.Options) { o.Bytes, o.RegionBytes = 10<<20, 1<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				r.mustPut(1, 1, 4096)
				r.end()
				opts := testOptions()
				spoil(dir, &opts)
				r = start(t, dir, opts)
				r.mustMiss(1)
				r.mustPut(2, 1, 4096)
				r.end()
				r = start(t, dir, opts)
				r.mustMiss(1)
				r.mustGet(2, 1, 4096)
				r.end()
			})
		})
	}
}

// TestSmallerAndCut: a smaller size gives up regions, a file that was cut short
// its end; the rest is served.
func TestSmallerAndCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		r.end()
		dir.Data(func(b []byte) []byte { return b[:1<<20+5*8<<20+3<<20] })
		r = start(t, dir, testOptions())
		for i := range 15 {
			r.mustGet(i, 1, 2<<20)
		}
		r.end()
		opts := testOptions()
		opts.Bytes = 34 << 20
		r = start(t, dir, opts)
		for i := range 12 {
			r.mustGet(i, 1, 2<<20)
		}
		r.mustMiss(12)
		dir.Data(func(b []byte) []byte {
			if len(b) > 34<<20 {
				t.Errorf("the file still has %d bytes", len(b))
			}
			return b
		})
		r.end()
	})
}

// TestBudget: no more is written than the rate allows, and what waits too long in
// a full queue is refused at once.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := testOptions()
		opts.WriteBytesPerSecond, opts.QueueBytes = 1<<20, 4<<20
		r := start(t, &disktest.Dir{}, opts)
		began := time.Now()
		taken, refused := 0, 0
		var open sync.WaitGroup
		for i := range 200 {
			source := content(i, 1, 256<<10)
			open.Add(1)
			if r.Demote(chunkFor(i, source), source, func(error) { open.Done() }) {
				taken++
			} else {
				refused++
				open.Done()
			}
			time.Sleep(100 * time.Millisecond)
		}
		open.Wait()
		rate := float64(r.Stats().WrittenBytes) / time.Since(began).Seconds()
		if rate > 1.2*(1<<20) || rate < 0.8*(1<<20) {
			t.Errorf("%.0f bytes a second were written", rate)
		}
		if refused < 80 || uint64(refused) != r.Stats().Refused[disk.RefusedQueue] {
			t.Errorf("%d taken, %d refused", taken, refused)
		}
		r.end()
	})
}

// TestExpiryAndMissOnce.
func TestExpiryAndMissOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		source := content(1, 1, 4096)
		c := chunkFor(1, source)
		c.Expires = uint32(time.Now().Add(time.Minute).Unix())
		done := make(chan error, 1)
		r.Demote(c, source, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		r.mustPut(2, 1, 4096)
		key := keyFor(2)
		r.MissOnce(&key)
		r.mustMiss(2)
		r.mustGet(2, 1, 4096)
		r.mustGet(1, 1, 4096)
		time.Sleep(2 * time.Minute)
		r.mustMiss(1)
		r.end()
		r = start(t, dir, testOptions())
		r.mustMiss(1)
		r.mustGet(2, 1, 4096)
		r.end()
	})
}

// TestRoom: a lookup promises what a slow disk reads within the patience.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		before := r.Room()
		for i := range 10 {
			r.mustPut(i, 1, 1<<20)
		}
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				return disktest.Fault{Hang: 100 * time.Millisecond} // 10 MiB/s, one at a time
			}
			return disktest.Fault{}
		})
		for range 3 {
			for i := range 10 {
				r.mustGet(i, 1, 1<<20)
			}
		}
		after := r.Room()
		if before < 400<<20 || after > 30<<20 || after < 4<<20 {
			t.Errorf("room was %d MiB, of a slow disk it is %d MiB", before>>20, after>>20)
		}
		r.end()
	})
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }
