package disk_test

import (
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

// TestManyAtOnceOnABadDisk: many chunks are written with one call, batch after batch.
// Whichever of them fails, and however: what was called written is there, after a
// restart too, and everybody is answered once.
func TestManyAtOnceOnABadDisk(t *testing.T) {
	faults := []disktest.Fault{
		{Err: syscall.EIO, Done: 5000}, {Short: true, Done: 70_000}, {Hang: 5 * time.Second}, {Hang: 500 * time.Millisecond},
	}
	there := 0 // in all draws: in one of many the disk may be out of service from the first write on
	for range 8 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			})
			random := rand.New(rand.NewPCG(seed, 1))
			dir := &disktest.Dir{}
			opts := testOptions()
			opts.Bytes, opts.BufferBytes = 257<<20, 256<<10
			r := start(t, dir, opts)
			var mu sync.Mutex // guards random and what follows
			dir.SetFault(func(c disktest.Call) disktest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == disktest.Write && random.IntN(12) == 0 {
					return faults[random.IntN(len(faults))]
				}
				return disktest.Fault{}
			})
			const n = 240
			sizes, answers, written := make([]int, n), make([]int, n), make([]bool, n)
			var open sync.WaitGroup
			for i := range n {
				mu.Lock()
				sizes[i] = 1 + random.IntN(100_000)
				if random.IntN(20) == 0 {
					sizes[i] *= 5 // longer than the buffer, some of them
				}
				burst := random.IntN(30) > 0
				mu.Unlock()
				source := content(i, 1, sizes[i])
				open.Add(1)
				if !r.Demote(chunkFor(i, source), source, func(err error) {
					mu.Lock()
					defer mu.Unlock()
					answers[i]++
					written[i] = err == nil
					open.Done()
				}) {
					answers[i]++
					open.Done()
				}
				if !burst {
					time.Sleep(10 * time.Second)
				}
			}
			open.Wait()
			dir.SetFault(nil)
			time.Sleep(5 * time.Minute)
			if n := r.Stats().Evicted; n > 0 {
				t.Fatalf("%d chunks gave way although there is room", n)
			}
			for _, when := range []string{"at once", "after a restart"} {
				for i := range n {
					err := r.get(i, 1, sizes[i])
					switch {
					case answers[i] != 1:
						t.Errorf("chunk %d was answered %d times", i, answers[i])
					case err == nil:
						there++
					case written[i]:
						t.Errorf("%s: chunk %d was called written: %v", when, i, err)
					case !errors.Is(err, errMiss) && !errors.Is(err, disk.ErrDamaged):
						t.Errorf("%s: chunk %d: %v", when, i, err)
					}
				}
				r.end()
				r = start(t, dir, opts)
			}
			r.end()
		})
	}
	if there == 0 {
		t.Error("nothing is there after any of the draws")
	}
}
