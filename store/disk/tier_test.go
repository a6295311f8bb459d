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
	"sync"
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

// killed ends the tier and starts another on what the directory has now: as if this
// one's process had been killed. It returns that directory too.
func (r *tier) killed(dir *disktest.Dir, opts disk.Options) (*tier, *disktest.Dir) {
	r.t.Helper()
	left := dir.Clone()
	r.end()
	return start(r.t, left, opts), left
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

// fill stores the first n chunks, of one shard of a page each.
func (r *tier) fill(n int) {
	r.t.Helper()
	for i := range n {
		r.mustPut(i, 1, 4096)
	}
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
// TestReset: what was reset does not come back, by no restart.
// TestResetThatIsNotNoted: a reset that the disk does not take is not
// acknowledged, and a restart that finds traces of it trusts nothing from before.
// TestForget: single chunks, by key and by tag.
// TestDamage: flipped bits anywhere in the file are misses.
// TestSourceThatIsDamaged is not written.
// TestFull: a disk without room keeps the tier small, and in service.
// TestFullAtWrite: a file system that reserves nothing.
// TestErrors: a disk that fails is left alone, and taken back after a probe.
// TestHang: a disk that hangs for 30 seconds is left within its deadline, blocks
// nobody, and is taken back.
// TestHangAtEnd: a call that never returns does not hold up the daemon's end.
// TestHangAtStart: neither opening nor looking through the file holds up anybody.
// TestFilesThatDoNotFit: the tier starts empty, and works.
// TestSmallerAndCut: a smaller size gives up regions, a file that was cut short
// its end; the rest is served.
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
