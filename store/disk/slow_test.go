package disk_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestRoomAfterASlowTime: that a disk was too slow for any chunk is not held
// against it for ever.
func TestRoomAfterASlowTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		opts := testOptions()
		opts.BufferBytes = 64 << 10 // many calls for a chunk
		r := start(t, dir, opts)
		const shard = 4 << 20
		r.mustPut(1, 1, shard)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				return disktest.Fault{Hang: 900 * time.Millisecond}
			}
			return disktest.Fault{}
		})
		for range 3 {
			r.mustGet(1, 1, shard)
		}
		if room := r.Room(); room >= shard {
			t.Fatalf("%d bytes are promised of a disk that reads 70 KB/s", room)
		}
		dir.SetFault(nil)
		time.Sleep(5 * time.Minute)
		if room := r.Room(); room < shard {
			t.Errorf("%d bytes are promised of a disk that is well since five minutes", room)
		}
		r.end()
	})
}

var errRefused = errors.New("refused")

// TestNoEntry: a chunk for which the catalog has no room is not taken, or not called
// written, and does not come back with a restart. In time there is room again.
func TestNoEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		opts := testOptions()
		opts.Bytes = 513 << 20 // for more chunks than tags
		r := start(t, dir, opts)
		const tags = 1 << 12
		hand := func(i, bytes int) chan error {
			source := content(i, 1, bytes)
			c := chunkFor(i, source)
			c.Tag = fmt.Sprint("tenant", i)
			done := make(chan error, 1)
			if !r.Demote(c, source, func(err error) { done <- err }) {
				done <- errRefused
			}
			return done
		}
		for i := range tags - 1 {
			if err := <-hand(i, 100); err != nil {
				t.Fatalf("tag %d: %v", i, err)
			}
		}
		last, more := hand(tags-1, 100), hand(tags, 100) // which is not known to be one too many
		if err := <-last; err != nil {
			t.Errorf("the last tag: %v", err)
		}
		if err := <-more; !errors.Is(err, disk.ErrNoEntry) {
			t.Errorf("one tag more: %v", err)
		}
		synctest.Wait()
		before, notes := dir.Calls(disktest.Write), dir.Calls(disktest.WriteFile)
		if err := <-hand(tags+1, 100); !errors.Is(err, errRefused) || r.Stats().Refused[disk.RefusedName] != 1 {
			t.Errorf("two tags more: %v", err)
		}
		synctest.Wait()
		if dir.Calls(disktest.Write) != before || dir.Calls(disktest.WriteFile) != notes {
			t.Error("a chunk that can't be kept is written, or noted")
		}
		r.mustMiss(tags)
		r.mustMiss(tags + 1)
		if err := r.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.end()
		r = start(t, dir, opts)
		r.mustMiss(tags)
		if n := r.Stats().Chunks; n != tags {
			t.Errorf("%d chunks came back", n)
		}
		// A region is as long as three chunks of 2 MiB.
		tries := 0
		for ; <-hand(tags+2, 2<<20) != nil; tries++ {
			if tries == 20 {
				t.Fatal("no tag becomes free")
			}
		}
		if tries == 0 {
			t.Error("it was taken at once")
		}
		r.end()
	})
}

// slowReads makes each read take so long, from the moment on that a tier starts.
func slowReads(dir *disktest.Dir, each time.Duration) {
	dir.SetFault(func(c disktest.Call) disktest.Fault {
		if c.Op == disktest.Read {
			return disktest.Fault{Hang: each}
		}
		return disktest.Fault{}
	})
}

// TestLookingThroughASlowDisk ends at its deadline, and with the daemon, wherever
// it is.
func TestLookingThroughASlowDisk(t *testing.T) {
	for name, test := range map[string]struct {
		patience time.Duration
		serves   bool
	}{
		"among the headers": {3 * time.Second, false}, // of eight regions
		"in a region":       {10 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				opts := testOptions()
				opts.Readers = 1
				r := start(t, dir, opts)
				for i := range 24 {
					r.mustPut(i, 1, 2<<20) // a read a chunk, at the start
				}
				r.end()
				slowReads(dir, 900*time.Millisecond)
				opts.ScanDeadline = test.patience
				r = start(t, dir, opts)
				time.Sleep(opts.ScanDeadline + 3*time.Second) // for the opening, and the last read
				s := r.Stats()
				if s.InService != test.serves {
					t.Errorf("after the deadline: %+v", s)
				}
				r.end()
			})
		})
	}
	t.Run("at the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dir := &disktest.Dir{}
			r := start(t, dir, testOptions())
			for i := range 24 {
				r.mustPut(i, 1, 2<<20)
			}
			r.end()
			slowReads(dir, 900*time.Millisecond)
			r = start(t, dir, testOptions())
			for _, into := range []time.Duration{time.Second, 9 * time.Second} {
				time.Sleep(into)
				began := time.Now()
				r.end()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("after %v the end took %v", into, took)
				}
				r = start(t, dir, testOptions())
			}
			r.end()
		})
	})
}

// TestEndOnASlowDisk: the daemon's end waits for one call, not for all that was
// begun.
func TestEndOnASlowDisk(t *testing.T) {
	const slow = 900 * time.Millisecond
	opts := testOptions()
	opts.BufferBytes = 64 << 10
	for name, test := range map[string]struct {
		op    disktest.Op
		begin func(r *tier, done chan error)
	}{
		"reading": {disktest.Read, func(r *tier, done chan error) { go func() { done <- r.get(0, 1, 4<<20) }() }},
		"writing": {disktest.Write, func(r *tier, done chan error) { go func() { done <- r.put(100, 1, 4<<20) }() }},
		"marking": {disktest.Read, func(r *tier, done chan error) {
			for i := range 50 {
				r.Forget(keyFor(1 + i))
			}
			done <- nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, opts)
				r.mustPut(0, 1, 4<<20)
				for i := range 50 {
					r.mustPut(1+i, 1, 4096)
				}
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == test.op {
						return disktest.Fault{Hang: slow}
					}
					return disktest.Fault{}
				})
				done := make(chan error, 1)
				test.begin(r, done)
				time.Sleep(2 * time.Second)
				began := time.Now()
				r.end()
				if took := time.Since(began); took > 2*slow {
					t.Errorf("the end took %v", took)
				}
				if err := <-done; name != "marking" && !errors.Is(err, disk.ErrClosed) {
					t.Errorf("it was answered with %v", err)
				}
			})
		})
	}
}
