package disk_test

import (
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// removeSome removes of ten chunks number 4 and the odd ones, by key and by tag.
func (r *tier) removeSome() {
	r.Forget(keyFor(4))
	r.ForgetTag(nil, "tag1")
}

// mustSettle waits for the disk.
func (r *tier) mustSettle() {
	r.t.Helper()
	if err := r.Settle(r.t.Context()); err != nil {
		r.t.Fatalf("Settle() = %v", err)
	}
}

// mustHaveSome looks for what removeSome leaves.
func (r *tier) mustHaveSome() {
	r.t.Helper()
	for i := range 10 {
		if i == 4 || i%2 == 1 {
			r.mustMiss(i)
		} else {
			r.mustGet(i, 1, 4096)
		}
	}
}

// mustStayAway kills the tier and looks for what removeSome leaves.
func (r *tier) mustStayAway(dir *disktest.Dir) {
	r.t.Helper()
	killed := dir.Clone()
	r.end()
	again := start(r.t, killed, testOptions())
	again.mustHaveSome()
	again.end()
}

// TestRemovedAtTheStart: removals count that come before the file is open, or
// while it is looked through.
func TestRemovedAtTheStart(t *testing.T) {
	for name, late := range map[string]disktest.Op{"opening": disktest.Open, "scanning": disktest.Read} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				r.fill(10)
				r.end()
				hold, head := make(chan struct{}), true
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == late && (c.Offset >= 1<<20 || !head) {
						<-hold
					}
					return disktest.Fault{}
				})
				head = late == disktest.Read // the first pages can be read
				opts := testOptions()
				opts.ReadDeadline, opts.WriteDeadline = time.Hour, time.Hour
				r = start(t, dir, opts)
				r.removeSome()
				close(hold)
				synctest.Wait()
				r.mustHaveSome()
				r.mustSettle()
				r.mustStayAway(dir)
			})
		})
	}
}

// TestRemovedOfWhatWasGivenUp: what was not looked at in time may be back after
// the next start, but not what was removed meanwhile.
func TestRemovedOfWhatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
		for i := 100; i < 110; i++ {
			r.mustPut(i, 1, 2<<20) // further regions
		}
		r.end()
		opts := testOptions()
		opts.ScanDeadline, opts.Readers = 12*time.Millisecond, 1 // enough for the headers
		dir.SetFault(func(c disktest.Call) disktest.Fault { return disktest.Fault{Hang: time.Millisecond} })
		r = start(t, dir, opts)
		time.Sleep(time.Second)
		dir.SetFault(nil)
		r.mustMiss(0)
		r.removeSome()
		r.mustSettle()
		r, _ = r.killed(dir, testOptions())
		for i := range 10 {
			if i == 4 || i%2 == 1 {
				r.mustMiss(i)
			}
		}
		r.end()
	})
}

// TestRemovedOfAFullCatalog: more chunks than the catalog has entries for.
func TestRemovedOfAFullCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(n)
		r.removeSome()
		r.mustSettle()
		for range 3 {
			r, dir = r.killed(dir, testOptions())
			for i := 1; i < n; i += 2 {
				r.mustMiss(i)
			}
			r.mustMiss(4)
		}
		if r.Stats().Chunks == 0 {
			t.Error("nothing is left")
		}
		r.end()
		// One that has room for all finds nothing of what was removed unseen.
		opts := testOptions()
		opts.Bytes = 513 << 20
		r = start(t, dir, opts)
		for i := 1; i < n; i += 2 {
			r.mustMiss(i)
		}
		r.mustMiss(4)
		r.end()
	})
}

// TestForgottenUnseen: a chunk that left the catalog, with its record still on the
// disk, is forgotten like another.
func TestForgottenUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(n)
		roomy := testOptions()
		roomy.Bytes = 513 << 20 // entries for all
		var unseen []int
		before := start(t, dir.Clone(), roomy)
		for i := range n {
			key := keyFor(i)
			if _, there := r.Look(&key); !there && before.get(i, 1, 4096) == nil {
				unseen = append(unseen, i)
			}
		}
		before.end()
		if len(unseen) == 0 {
			t.Fatal("the catalog has had room for all")
		}
		for _, i := range unseen {
			r.Forget(keyFor(i))
		}
		r.mustSettle()
		r, _ = r.killed(dir, roomy)
		for _, i := range unseen {
			r.mustMiss(i)
		}
		r.mustGet(n-1, 1, 4096)
		r.end()
	})
}

// TestRemovedFromABadPage: a record that can't be read is removed like another,
// and holds up no removal of others.
func TestRemovedFromABadPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
		at := recordAt(t, dir, 4)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read && c.Offset <= at && at < c.Offset+int64(c.Bytes) {
				return disktest.Fault{Err: syscall.EIO}
			}
			return disktest.Fault{}
		})
		r.Forget(keyFor(4))
		if err := r.Settle(t.Context()); err != nil {
			t.Errorf("the chunk itself: %v", err)
		}
		r.ForgetTag(nil, "tag1")
		if err := r.Settle(t.Context()); err != nil {
			t.Errorf("others after it: %v", err)
		}
		r.mustStayAway(dir)
	})
}

// recordAt finds the header of chunk i in the file.
func recordAt(t *testing.T, dir *disktest.Dir, i int) int64 {
	t.Helper()
	found, key := int64(-1), keyFor(i)
	dir.Data(func(data []byte) []byte {
		for at := int64(1 << 20); at < int64(len(data)); at += disk.PageBytes {
			if [32]byte(data[at+88:]) == [32]byte(key.Hash) {
				found = at
			}
		}
		return data
	})
	if found < 0 {
		t.Fatalf("chunk %d is not in the file", i)
	}
	return found
}

// TestRemovedByALateWrite: a chunk that is removed while its record hangs in the
// kernel stays away when the record arrives after all.
func TestRemovedByALateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		opts := testOptions()
		r := start(t, dir, opts)
		r.fill(3)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write && c.Bytes > disk.PageBytes {
				return disktest.Fault{Hang: 10 * time.Second}
			}
			return disktest.Fault{}
		})
		if err := r.put(4, 1, 4096); err == nil {
			t.Fatal("a write that hangs has succeeded")
		}
		r.Forget(keyFor(4))
		time.Sleep(5 * time.Minute)
		if !r.Stats().InService {
			t.Fatal("it did not come back")
		}
		r.mustSettle()
		dir.SetFault(nil)
		killed := dir.Clone()
		recordAt(t, killed, 4) // it did arrive
		r.end()
		r = start(t, killed, opts)
		r.mustMiss(4)
		r.mustGet(2, 1, 4096)
		r.end()
	})
}

// TestManyRemovals: however many chunks are removed one by one, what was removed
// stays away, and the file of removals has bounds.
func TestManyRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(900)
		for i := range 800 {
			r.Forget(keyFor(i))
		}
		r.mustSettle()
		r, _ = r.killed(dir, testOptions())
		for i := range 800 {
			r.mustMiss(i)
		}
		for i := 800; i < 900; i++ {
			r.mustGet(i, 1, 4096)
		}
		r.end()
	})
}

// TestStoredAgain: what is stored after its removal is there, however it was
// removed, and after restarts.
func TestStoredAgain(t *testing.T) {
	for name, remove := range map[string]func(r *tier){
		"key":       func(r *tier) { r.Forget(keyFor(1)) },
		"tag":       func(r *tier) { r.ForgetTag(nil, "tag1") },
		"namespace": func(r *tier) { r.Reset(keyFor(1).Namespace) },
		"both":      func(r *tier) { r.ForgetTag(&[]disk.Key{keyFor(1)}[0].Namespace, "tag1") },
		"all":       func(r *tier) { r.ResetAll() },
		"key and tag": func(r *tier) {
			tag := "tag1"
			r.ForgetWithTag(&tag, keyFor(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				r.mustPut(1, 1, 4096)
				for round := range 3 {
					remove(r)
					r.mustMiss(1)
					r.mustSettle()
					r, dir = r.killed(dir, testOptions())
					r.mustMiss(1)
					r.mustPut(1, 1, 4096)
					r, dir = r.killed(dir, testOptions())
					if err := r.get(1, 1, 4096); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
				}
				r.end()
			})
		})
	}
}

// TestSettleIsBounded: with a disk that takes no note every removal is answered,
// as uncertain, when the caller's time is over.
func TestSettleIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		opts := testOptions()
		opts.WriteDeadline = time.Hour
		r := start(t, dir, opts)
		r.mustPut(1, 1, 4096)
		hold := make(chan struct{})
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.WriteFile {
				<-hold
			}
			return disktest.Fault{}
		})
		for range 3 {
			r.Forget(keyFor(1))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := r.Settle(ctx); !errors.Is(err, disk.ErrUncertain) {
				t.Errorf("Settle() = %v", err)
			}
			cancel()
		}
		close(hold)
		r.mustSettle()
		r.end()
	})
}

// TestHold: what is held is not taken, until all who hold it let go.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &disktest.Dir{}, testOptions())
		namespace, tag, other := keyFor(1).Namespace, "tag1", "other"
		releases := []func(){r.Hold(&namespace, nil), r.Hold(nil, nil), r.Hold(nil, &tag), r.Hold(&namespace, &tag), r.Hold(&namespace, nil)}
		for i, release := range releases {
			if err := r.put(1, 1, 4096); err == nil {
				t.Errorf("taken with %d holds", len(releases)-i)
			}
			release()
		}
		defer r.Hold(&[32]byte{5}, &tag)()
		defer r.Hold(&namespace, &other)()
		r.mustPut(1, 1, 4096)
		r.end()
	})
}

// TestLinks: chains are known as they were handed over, after restarts too, and go
// as they are listed.
func TestLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		word := func(i int) uint64 {
			key := keyFor(i)
			return binary.LittleEndian.Uint64(key.Hash[:])
		}
		for i := range 30 {
			source := content(i, 1, 4096)
			c := chunkFor(i, source)
			c.Parent = 0
			if i >= 3 {
				c.Parent = word(i - 3) // of its group
			}
			done := make(chan error, 1)
			if !r.Demote(c, source, func(err error) { done <- err }) {
				t.Fatal("refused")
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		r.Forget(keyFor(29))
		r.mustSettle()
		for range 2 {
			links, err := r.Links(keyFor(1).Namespace)
			if err != nil || len(links) != 29 {
				t.Fatalf("%d links, %v", len(links), err)
			}
			seen := map[disk.Link]bool{}
			for _, l := range links {
				seen[disk.Link{Group: l.Group, Hash: l.Hash, Parent: l.Parent}] = true
			}
			for i := range 29 {
				want := disk.Link{Group: uint16(i % 3), Hash: word(i)}
				if i >= 3 {
					want.Parent = word(i - 3)
				}
				if !seen[want] {
					t.Errorf("no %+v", want)
				}
			}
			if links, err := r.Links([32]byte{1}); err != nil || len(links) != 0 {
				t.Errorf("%d links of no namespace, %v", len(links), err)
			}
			r, dir = r.killed(dir, testOptions())
		}
		links, err := r.Links(keyFor(1).Namespace)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.ForgetLinks(nil, links); n != 29 {
			t.Errorf("%d were forgotten", n)
		}
		r.mustSettle()
		r, _ = r.killed(dir, testOptions())
		for i := range 30 {
			r.mustMiss(i)
		}
		r.end()
	})
}

// TestLinksOfATierThatStarts are refused: it does not know them.
func TestLinksOfATierThatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		dir := &disktest.Dir{Fault: func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Open {
				<-hold
			}
			return disktest.Fault{}
		}}
		r := start(t, dir, testOptions())
		if _, err := r.Links([32]byte{}); !errors.Is(err, disk.ErrUncertain) {
			t.Errorf("Links() = %v", err)
		}
		close(hold)
		r.end()
	})
}

// TestHandedOverWhileItsRegionCloses: a chunk whose region is about to be written
// over is taken again, and of its two records the old one is void.
func TestHandedOverWhileItsRegionCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		hold, fails := make(chan struct{}), true
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write && c.Offset == regions(0) && fails {
				<-hold
				fails = false
				return disktest.Fault{Err: syscall.EIO} // and the region stays as it is
			}
			return disktest.Fault{}
		})
		begun, again := make(chan error, 1), make(chan error, 1)
		go func() { begun <- r.put(24, 1, 2<<20) }()
		synctest.Wait()
		go func() { again <- r.put(0, 1, 2<<20) }()
		synctest.Wait()
		close(hold)
		if err := <-begun; !errors.Is(err, syscall.EIO) {
			t.Fatalf("the first of a region: %v", err)
		}
		if err := <-again; err != nil {
			t.Fatalf("the chunk again: %v", err)
		}
		r.mustGet(0, 1, 2<<20)
		r.Forget(keyFor(0))
		r.mustSettle()
		r, _ = r.killed(dir, testOptions())
		r.mustMiss(0)
		r.mustGet(23, 1, 2<<20)
		r.end()
	})
}
