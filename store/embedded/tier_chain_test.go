package embedded

import (
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestChainThatIsBeingWritten: of a chain that is removed while chunks of it are
// being written, none stays on the disk that was written after the disk was looked
// at, and left memory before that was looked at again.
func TestChainThatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns, other := d.namespace(testSpec("m", 256<<10, 1)), d.namespace(testSpec("other", 256<<10, 1))
		hold := make(chan struct{})
		d.dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write {
				<-hold
			}
			return disktest.Fault{}
		})
		for i := range 3 {
			d.storeChained(s, ns, i, "")
		}
		stored := 0
		moves := func(i int) bool {
			hash := testHash(i)
			rec, ok := d.m.findLocked(ns.ID, 0, &hash)
			return ok && d.m.live[rec].state == Migrating
		}
		for ; !moves(2); stored++ {
			if stored == 60 {
				t.Fatal("nothing is on its way to the disk")
			}
			d.storeChained(s, other, stored, "")
		}
		sel, err := d.m.selection(&Scope{Namespace: &ns.ID, Hashes: hashesOf(0), Chain: true})
		if err != nil {
			t.Fatal(err)
		}
		release := d.m.holdBelow(sel)
		c, err := d.m.lookAtChain(t.Context(), sel)
		if err != nil || c.below != nil || len(c.onDisk) != 0 {
			t.Fatalf("%d on the disk already: %v, %v", len(c.onDisk), err, c.below)
		}
		close(hold)
		synctest.Wait()
		for i := range 200 { // memory gives all of the chain up
			d.storeChained(s, other, 1000+i, "")
		}
		if err := d.m.dropChain(t.Context(), new(Removal), sel, c); err != nil {
			t.Fatal(err)
		}
		if err := d.m.settleTier(t.Context()); err != nil {
			t.Fatal(err)
		}
		release()
		for i := range 3 {
			if d.load(s, ns, i, 1) == nil {
				t.Errorf("chunk %d is served after its removal", i)
			}
		}
		d.unmount()
	})
}

// TestRemovedUnderAnotherTag: a chunk that is removed by its tag in memory goes from
// the disk, too, which has it under the tag of who stored it first.
func TestRemovedUnderAnotherTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns, other := d.namespace(testSpec("m", 256<<10, 1)), d.namespace(testSpec("other", 256<<10, 1))
		d.storeChained(s, ns, 0, "first")
		for i := range 150 {
			d.storeChained(s, other, i, "")
		}
		key := d.m.diskKey(ns.ID, 0, new(testHash(0)))
		if found, there := d.tier.Look(&key); !there || found.Tag != "first" {
			t.Fatalf("on the disk: %v, %+v", there, found)
		}
		d.storeChained(s, ns, 0, "second")
		tag := "second"
		done, err := d.m.Remove(t.Context(), Scope{SaltTag: &tag})
		if err != nil || done.Chunks != 1 || done.OnDisk != 1 {
			t.Errorf("removed %+v, %v", done, err)
		}
		for range 2 {
			if d.exists(ns, 0) {
				t.Error("the chunk is there")
			}
			d.reboot()
			ns = d.namespace(testSpec("m", 256<<10, 1))
		}
		d.unmount()
	})
}
