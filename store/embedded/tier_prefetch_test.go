package embedded

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// prefetchWorld has chunks 0 to 199 of a quarter MiB on the disk, of which the last
// are in 16 MiB of memory, too.
func prefetchWorld(t *testing.T) (*diskWorld, Session, store.Namespace) {
	t.Helper()
	d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
	s := d.open(1, 1, 100, Declaration{})
	ns := d.namespace(testSpec("m", 256<<10, 1))
	for i := range 200 {
		d.store(s, ns, i, 0)
		synctest.Wait()
	}
	return d, s, ns
}

func (d *diskWorld) slowReads(each time.Duration) {
	d.dir.SetFault(func(c disktest.Call) disktest.Fault {
		if c.Op == disktest.Read {
			return disktest.Fault{Hang: each}
		}
		return disktest.Fault{}
	})
}

// inMemory counts those of the chunks from first on that memory has whole.
func (d *diskWorld) inMemory(ns store.Namespace, first, n int) (whole int) {
	d.m.mu.RLock()
	defer d.m.mu.RUnlock()
	for i := first; i < first+n; i++ {
		if rec, ok := d.m.findLocked(ns.ID, 0, new(testHash(i))); ok && d.m.live[rec].state.Whole() {
			whole++
		}
	}
	return whole
}

// TestPrefetchOfASlowDisk evicts nothing for what the disk can't bring soon.
func TestPrefetchOfASlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		d.slowReads(900 * time.Millisecond)
		for i := range 8 {
			if err := d.load(s, ns, i, 1); err != nil {
				t.Fatalf("load %d: %v", i, err)
			}
		}
		before := d.inMemory(ns, 100, 100)
		begun, err := d.m.Prefetch(ns.ID, chunkKeys(ints(8, 92)...))
		if room := int(d.tier.Room() >> 18); err != nil || begun == 0 || begun > 20 || room > 20 {
			t.Errorf("%d chunks are begun of a disk that reads one in 0.9 s: %v, room for %d more", begun, err, room)
		}
		if now := d.inMemory(ns, 100, 100); now < before-begun {
			t.Errorf("%d of %d chunks left memory for %d", before-now, before, begun)
		}
		time.Sleep(time.Minute)
		d.m.validate(t)
		d.unmount()
	})
}

func ints(first, n int) (out []int) {
	for i := range n {
		out = append(out, first+i)
	}
	return out
}

// TestPrefetchAll brings a list that is far longer than what the disk reads in
// time, bit by bit.
func TestPrefetchAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		d.slowReads(500 * time.Millisecond)
		if err := d.load(s, ns, 199-150, 1); err != nil {
			t.Fatal(err)
		}
		keys := append(chunkKeys(ints(0, 40)...), store.ChunkKey{Group: 7}, store.ChunkKey{Hash: testHash(1000)})
		if n, err := d.m.PrefetchAll(t.Context(), ns.ID, keys); n != 40 || err != nil {
			t.Errorf("PrefetchAll() = %d, %v", n, err)
		}
		time.Sleep(10 * time.Second)
		if n := d.inMemory(ns, 0, 40); n != 40 || d.m.Stats().Tiers.PromotionsFailed != 0 {
			t.Errorf("%d chunks came, %+v", n, d.m.Stats().Tiers)
		}
		// It ends when it is given up, and when the disk is taken out of service.
		d.slowReads(900 * time.Millisecond)
		for i := 40; i < 48; i++ { // it is known to be slow
			if err := d.load(s, ns, i, 1); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		if n, err := d.m.PrefetchAll(ctx, ns.ID, chunkKeys(ints(50, 100)...)); !errors.Is(err, context.DeadlineExceeded) || n == 0 || n > 60 {
			t.Errorf("PrefetchAll() = %d, %v", n, err)
		}
		d.dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				return disktest.Fault{Hang: time.Second / 2, Err: syscall.EIO}
			}
			return disktest.Fault{}
		})
		began := time.Now()
		if n, err := d.m.PrefetchAll(t.Context(), ns.ID, chunkKeys(ints(50, 100)...)); err != nil || time.Since(began) > 10*time.Second {
			t.Errorf("PrefetchAll() = %d, %v after %v", n, err, time.Since(began))
		}
		d.dir.SetFault(nil)
		time.Sleep(time.Minute)
		d.m.validate(t)
		d.unmount()
	})
}

// TestPrefetchThatIsLate is nobody's failed load: the next lookup is promised the
// chunks.
func TestPrefetchThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, ns := prefetchWorld(t)
		d.slowReads(900 * time.Millisecond) // which nobody knows yet
		begun, err := d.m.Prefetch(ns.ID, chunkKeys(ints(0, 60)...))
		if begun < 60 || err != nil {
			t.Fatalf("Prefetch() = %d, %v", begun, err)
		}
		time.Sleep(20 * time.Second)
		if d.m.Stats().Tiers.PromotionsFailed == 0 {
			t.Fatal("none was late")
		}
		d.dir.SetFault(nil)
		time.Sleep(5 * time.Minute)
		for i := range 60 {
			if !d.exists(ns, i) {
				t.Errorf("chunk %d is not promised", i)
			}
		}
		d.unmount()
	})
}

// TestFailedOnceForAllRanks: that a load of a chunk has failed is for the next
// lookup to hear, and not for a rank that asks again.
func TestFailedOnceForAllRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1)}}); err != nil {
			t.Fatal(err)
		}
		for rank := range 2 {
			if r, err := d.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(1)}}); err != nil || r[0].Status != store.GetAbsent {
				t.Errorf("rank %d is told %v, %v", rank, r[0].Status, err)
			}
		}
		if d.exists(ns, 1) {
			t.Error("the chunk is promised again at once")
		}
		if !d.exists(ns, 1) {
			t.Error("the chunk is a miss twice")
		}
		d.unmount()
	})
}
