package disk_test

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// slowNotes makes the file of removals take its time.
func slowNotes(c disktest.Call) disktest.Fault {
	if c.Op == disktest.WriteFile {
		return disktest.Fault{Hang: 20 * time.Millisecond}
	}
	return disktest.Fault{}
}

// TestKilledBeforeTheNote: what is written while a removal is being noted does not
// cost the other chunks, whenever a kill comes.
func TestKilledBeforeTheNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
		r.mustSettle()
		var killed []*disktest.Dir
		dir.SetFault(slowNotes)
		r.Forget(keyFor(3))
		written := make(chan error, 2)
		for i := range 2 { // the second beside the first
			go func() { written <- r.put(11+i, 1, 4096) }()
		}
		for range 4 {
			time.Sleep(9 * time.Millisecond)
			killed = append(killed, dir.Clone())
		}
		for range 2 {
			if err := <-written; err != nil {
				t.Error(err)
			}
		}
		killed = append(killed, dir.Clone())
		r.end()
		for at, image := range killed {
			r = start(t, image, testOptions())
			for i := range 10 {
				if i != 3 && r.get(i, 1, 4096) != nil {
					t.Errorf("kill %d: chunk %d is lost", at, i)
				}
			}
			r.end()
		}
	})
}

// TestBatchedBeforeTheNote: what waits behind an older chunk is not written with it,
// if a removal came between.
func TestBatchedBeforeTheNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
		r.mustSettle()
		hold := make(chan struct{})
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write {
				<-hold
			}
			return slowNotes(c)
		})
		written := make(chan error, 3)
		put := func(i int) {
			go func() { written <- r.put(i, 1, 4096) }()
			synctest.Wait()
		}
		put(11) // under way
		put(12) // waits, and is older than the removal
		r.Forget(keyFor(3))
		put(13)
		close(hold)
		time.Sleep(10 * time.Millisecond)
		killed := dir.Clone()
		for range 3 {
			if err := <-written; err != nil {
				t.Error(err)
			}
		}
		r.end()
		r = start(t, killed, testOptions())
		r.mustGet(2, 1, 4096)
		r.end()
	})
}

// TestNotedAtTheEnd: a removal of which the note had failed is noted when the tier
// is closed.
func TestNotedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.WriteFile {
				return disktest.Fault{Err: syscall.ENOSPC}
			}
			return disktest.Fault{}
		})
		r.Forget(keyFor(3))
		synctest.Wait()
		dir.SetFault(nil)
		r.end()
		r = start(t, dir, testOptions())
		r.mustMiss(3)
		r.mustGet(4, 1, 4096)
		r.end()
	})
}

// unreadable fails reads of so many regions, of their header or of what is behind.
func unreadable(c disktest.Call, bad int, head bool) disktest.Fault {
	for i := range bad {
		at := regions(int64(i))
		if !head {
			at += disk.PageBytes
		}
		if c.Op == disktest.Read && c.Offset <= at && at < c.Offset+int64(c.Bytes) {
			return disktest.Fault{Err: syscall.EIO}
		}
	}
	return disktest.Fault{}
}

// TestUnreadableRegions: some regions that can't be read cost their chunks, and not
// the tier; when most can't be, it is the disk, and what it had is back with it.
func TestUnreadableRegions(t *testing.T) {
	const chunks = 18 // three a region
	for bad, want := range map[int]int{0: chunks, 2: chunks - 6, 3: chunks - 9, 6: chunks} {
		for _, head := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				for i := range chunks {
					r.mustPut(i, 1, 2<<20)
				}
				r.end()
				dir.SetFault(func(c disktest.Call) disktest.Fault { return unreadable(c, bad, head) })
				r = start(t, dir, testOptions())
				time.Sleep(time.Minute)
				if bad == 6 {
					if r.Stats().InService && r.Stats().Chunks > 0 {
						t.Error("a disk that fails is in service")
					}
					dir.SetFault(nil)
					time.Sleep(5 * time.Minute)
				}
				if s := r.Stats(); !s.InService || s.Chunks != want {
					t.Errorf("%d bad regions, their head %v: %v with %d chunks, want %d", bad, head, s.State, s.Chunks, want)
				}
				r.mustPut(chunks, 1, 2<<20)
				r.end()
			})
		}
	}
}

// TestRemovedWhileRegionsCannotBeRead: a removal that is noted while the file is
// looked through does not void for good what could not be read just then.
func TestRemovedWhileRegionsCannotBeRead(t *testing.T) {
	const chunks = 18 // three a region
	for _, head := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir := &disktest.Dir{}
			r := start(t, dir, testOptions())
			for i := range chunks {
				r.mustPut(i, 1, 2<<20)
			}
			r.end()
			opts := testOptions()
			opts.Readers = 1
			last := regions(6) // all headers but this one were asked for,
			if !head {
				last = regions(2) + disk.PageBytes // or the three newest regions
			}
			hold := make(chan struct{})
			dir.SetFault(func(c disktest.Call) disktest.Fault {
				if c.Op == disktest.Read && c.Offset == last {
					<-hold
				}
				return unreadable(c, 6, head)
			})
			notes := dir.Calls(disktest.WriteFile)
			r = start(t, dir, opts)
			r.Forget(keyFor(4))
			synctest.Wait()
			if dir.Calls(disktest.WriteFile) == notes {
				t.Fatal("the removal is not noted while the file is looked through")
			}
			close(hold)
			time.Sleep(time.Minute)
			dir.SetFault(nil)
			time.Sleep(5 * time.Minute)
			if s := r.Stats(); !s.InService || s.Chunks != chunks-1 {
				t.Errorf("their head %v: %v with %d chunks, want %d", head, s.State, s.Chunks, chunks-1)
			}
			r.mustMiss(4)
			r.end()
		})
	}
}
