package embedded

import (
	"hash/crc32"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestWhatIsUsedComesBack: a chunk on its way down that is used stays in memory.
func TestWhatIsUsedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		for i := range 200 {
			d.store(s, ns, i, 0)
			if i >= 10 {
				for hot := range 10 {
					if r, _ := d.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(hot)}}); r[0].Status == store.GetReady {
						_ = d.m.Release(s, []uint64{r[0].Ref})
					} else {
						t.Fatalf("chunk %d, which is used all the time, is %v", hot, r[0].Status)
					}
				}
			}
			synctest.Wait()
		}
		d.m.validate(t)
		d.unmount()
	})
}

// TestChainComesBackWhole: parent, depth, tag and time to live survive the way
// down and up.
func TestChainComesBackWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		opts := PutOptions{SaltTag: "tenant", TTL: time.Hour}
		grants, err := d.m.PutStartAs(s, ns, &opts, []store.PutItem{{Hash: testHash(1), Parent: testHash(0), Depth: 7}})
		if err != nil {
			t.Fatal(err)
		}
		b := d.place(grants[0].Place)
		fillShard(b, 1, 0)
		if _, err := d.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket, Checksum: crc32.Checksum(b, castagnoli)}}); err != nil {
			t.Fatal(err)
		}
		find := func() (record, bool) {
			rec, ok := d.m.findLocked(ns.ID, 0, new(testHash(1)))
			if !ok {
				return record{}, false
			}
			return d.m.seg.peekRecord(rec), true
		}
		before, _ := find()
		for i := 100; i < 300; i++ {
			d.store(s, ns, i, 0)
			synctest.Wait()
		}
		if _, there := find(); there {
			t.Fatal("the chunk is still in memory")
		}
		time.Sleep(10 * time.Minute)
		d.now = time.Now()
		states, err := d.m.Inspect(ns.ID, []uint32{0, 0, 0}, []kv.Hash{testHash(1), testHash(299), testHash(1000)})
		if err != nil || states[0] != ChunkOnDisk || states[1] != ChunkPresent || states[2] != ChunkAbsent {
			t.Errorf("inspected: %v, %v", states, err)
		}
		view := d.m.View(ns.ID)
		if view.Exists(0, testHash(1)) != kv.Present || view.TierOf(0, testHash(1)) != store.TierDisk || !view.Slower() {
			t.Error("the lookup does not know that the chunk is on the disk")
		}
		if view.Exists(0, testHash(299)) != kv.Present || view.TierOf(0, testHash(299)) != store.TierHost {
			t.Error("the lookup does not know that the last chunk is in memory")
		}
		view.Close()
		if err := d.load(s, ns, 1, 1); err != nil {
			t.Fatal(err)
		}
		after, _ := find()
		if after.parent != before.parent || after.depth != 7 || d.m.tags[after.saltTag] != "tenant" {
			t.Errorf("was %+v, is %+v", before, after)
		}
		if late := int(after.expires) - int(before.expires); late < -2 || late > 2 {
			t.Errorf("expires %d seconds later", late)
		}
		d.m.validate(t)
		time.Sleep(time.Hour)
		d.now = time.Now()
		d.m.Tick()
		if d.exists(ns, 1) {
			t.Error("the chunk outlives its time, on the disk")
		}
		d.unmount()
	})
}

// TestFailedLoadsFromTheDisk: a chunk whose load failed is a miss once, and one
// that was corrupt is gone, on the disk as in memory.
func TestFailedLoadsFromTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		for i := range 200 {
			d.store(s, ns, i, 0)
			synctest.Wait()
		}
		for _, corrupt := range []bool{false, true} {
			if !d.exists(ns, 1) {
				t.Fatal("the chunk is not on the disk")
			}
			if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1), Corrupt: corrupt}}); err != nil {
				t.Fatal(err)
			}
			if d.exists(ns, 1) {
				t.Error("a chunk whose load failed is promised again at once")
			}
		}
		if d.exists(ns, 1) {
			t.Error("a corrupt chunk is still there")
		}
		// In memory and on the disk: both go.
		if err := d.load(s, ns, 2, 1); err != nil {
			t.Fatal(err)
		}
		if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(2), Corrupt: true}}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if d.exists(ns, 2) {
				t.Error("a corrupt chunk comes back from the disk")
			}
		}
		d.m.validate(t)
		d.unmount()
	})
}

// TestUsedWhileItIsWritten: it goes back to the policy, and others go first.
func TestUsedWhileItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		hold := make(chan struct{})
		d.dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write {
				<-hold
			}
			return disktest.Fault{}
		})
		state := func() State {
			rec, ok := d.m.findLocked(ns.ID, 0, new(testHash(0)))
			if !ok {
				return Gone
			}
			return d.m.live[rec].state
		}
		next := 0
		for ; state() != Migrating || next == 0; next++ {
			d.store(s, ns, next, 0)
			synctest.Wait()
		}
		if !d.checkBytes(s, ns, 0, 0) {
			t.Fatal("a chunk on its way down can't be read")
		}
		if state() != Migrating {
			t.Fatalf("the chunk that is being written is %v", state())
		}
		close(hold)
		synctest.Wait()
		if state() != Active {
			t.Errorf("the chunk that was used while it was written is %v", state())
		}
		for range 20 { // fewer than there are others
			d.store(s, ns, next, 0)
			next++
			synctest.Wait()
		}
		if state() != Active {
			t.Errorf("the chunk that was used is %v, others are older", state())
		}
		d.m.validate(t)
		d.unmount()
	})
}
