package disk_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

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
		if err := <-done; !errors.Is(err, disk.ErrGone) {
			t.Fatalf("a chunk that was reset while it waited: %v", err)
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

// TestResetThatIsNotNoted: on a full disk what is written then counts, and what is
// older does not. On one that fails, nothing is written until the reset is noted:
// a kill costs nothing.
func TestResetThatIsNotNoted(t *testing.T) {
	for name, failure := range map[string]error{"full": syscall.ENOSPC, "fails": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				r.fill(10)
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == disktest.WriteFile {
						return disktest.Fault{Err: failure}
					}
					return disktest.Fault{}
				})
				r.Reset([32]byte{200})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.Settle(ctx); !errors.Is(err, disk.ErrUncertain) {
					t.Fatalf("Settle() = %v", err)
				}
				full, began := errors.Is(failure, syscall.ENOSPC), time.Now()
				if err := r.put(20, 1, 4096); full && err != nil || !full && !errors.Is(err, disk.ErrGone) {
					t.Errorf("a chunk that comes then: %v", err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("it is answered after %v", took)
				}
				killed := dir.Clone()
				dir.SetFault(nil)
				time.Sleep(time.Minute)
				if err := r.Settle(t.Context()); err != nil {
					t.Fatalf("the reset was not noted in the end: %v", err)
				}
				r.mustPut(21, 1, 4096)
				r.end()
				r = start(t, killed, testOptions())
				for i := range 10 {
					if full {
						r.mustMiss(i)
					} else {
						r.mustGet(i, 1, 4096)
					}
				}
				if full {
					r.mustGet(20, 1, 4096)
				}
				r.end()
			})
		})
	}
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.fill(10)
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
		r, _ = r.killed(dir, testOptions())
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

func TestFilesThatDoNotFit(t *testing.T) {
	for name, spoil := range map[string]func(dir *disktest.Dir, opts *disk.Options){
		"other format": func(dir *disktest.Dir, _ *disk.Options) { dir.Data(func(b []byte) []byte { b[8]++; return b }) },
		"no superblock": func(dir *disktest.Dir, _ *disk.Options) {
			dir.Data(func(b []byte) []byte { clear(b[:4096]); return b })
		},
		"cut to nothing":       func(dir *disktest.Dir, _ *disk.Options) { dir.Data(func(b []byte) []byte { return b[:100] }) },
		"removals are missing": func(dir *disktest.Dir, _ *disk.Options) { dir.Remove("removals.mcs") },
		"removals are torn":    func(dir *disktest.Dir, _ *disk.Options) { _ = dir.WriteFile("removals.mcs", []byte("MCSDREM")) },
		"far smaller":          func(_ *disktest.Dir, o *disk.Options) { o.Bytes, o.RegionBytes = 10<<20, 1<<20 },
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

// TestWhatIsReadStays: a region is not given up while a chunk of it is read,
// however long that takes and however much is written.
func TestWhatIsReadStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		opts := testOptions()
		opts.ReadDeadline = time.Hour
		r := start(t, dir, opts)
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		hold := make(chan struct{})
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				<-hold
			}
			return disktest.Fault{}
		})
		result := make(chan error, 1)
		go func() { result <- r.get(0, 1, 2<<20) }()
		synctest.Wait()
		for i := 24; i < 60; i++ {
			r.mustPut(i, 1, 2<<20)
		}
		r.mustMiss(5)
		close(hold)
		if err := <-result; err != nil {
			t.Errorf("the chunk that was read all the while: %v", err)
		}
		r.end()
	})
}
