package embedded

import (
	"context"
	"errors"
	"hash/crc32"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// meanwhile is a context that does something when it is first asked whether it is
// over: in the midst of a call.
type meanwhile struct {
	context.Context
	do func()
}

func (c *meanwhile) Err() error {
	if do := c.do; do != nil {
		c.do = nil
		do()
	}
	return c.Context.Err()
}

// storeChained stores a chunk of one shard, with its predecessor and a salt tag.
func (d *diskWorld) storeChained(s Session, ns store.Namespace, chunk int, tag string) {
	d.tb.Helper()
	item := store.PutItem{Hash: testHash(chunk), Depth: uint32(chunk)}
	if chunk > 0 {
		item.Parent = testHash(chunk - 1)
	}
	grants, err := d.m.PutStartAs(s, ns, &PutOptions{SaltTag: tag}, []store.PutItem{item})
	if err != nil || grants[0].Status != store.PutGranted {
		d.tb.Fatalf("put of chunk %d: %+v, %v", chunk, grants, err)
	}
	b := d.place(grants[0].Place)
	fillShard(b, chunk, 0)
	if _, err := d.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket, Checksum: crc32.Checksum(b, castagnoli)}}); err != nil {
		d.tb.Fatal(err)
	}
	synctest.Wait()
}

// TestRemovedWhileItGoesDown: a chunk that memory gives up in the midst of a
// removal does not stay on the disk.
func TestRemovedWhileItGoesDown(t *testing.T) {
	tag := "tenant"
	for name, scope := range map[string]func(ns store.Namespace) Scope{
		"tag":       func(store.Namespace) Scope { return Scope{SaltTag: &tag} },
		"namespace": func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID} },
		"hashes":    func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID, Hashes: hashesOf(0)} },
		"chain":     func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID, Hashes: hashesOf(0), Chain: true} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
				s := d.open(1, 1, 100, Declaration{})
				ns, other := d.namespace(testSpec("m", 256<<10, 1)), d.namespace(testSpec("other", 256<<10, 1))
				d.storeChained(s, ns, 0, tag)
				ctx := &meanwhile{t.Context(), func() {
					for i := range 200 {
						d.storeChained(s, other, i, "")
					}
				}}
				if _, err := d.m.Remove(ctx, scope(ns)); err != nil {
					t.Fatal(err)
				}
				if d.exists(ns, 0) {
					t.Error("the chunk is there")
				}
				d.reboot()
				if d.exists(d.namespace(testSpec("m", 256<<10, 1)), 0) {
					t.Error("the chunk is back after a restart")
				}
				if !d.exists(d.namespace(testSpec("other", 256<<10, 1)), 20) {
					t.Error("what was not meant is gone")
				}
				d.unmount()
			})
		})
	}
}

// TestChainOverMemoryAndDisk: a chain goes from one to the other and back, and goes
// as a whole; what is in front of its first chunk stays.
func TestChainOverMemoryAndDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		const length = 150
		for i := range length {
			d.storeChained(s, ns, i, "")
		}
		for _, up := range []int{20, 60, 61} { // pieces of it come up again
			if err := d.load(s, ns, up, 1); err != nil {
				t.Fatal(err)
			}
		}
		before := d.tier.Stats().Chunks
		done, err := d.m.Remove(t.Context(), Scope{Namespace: &ns.ID, Hashes: hashesOf(10), Chain: true})
		if err != nil || done.Chunks == 0 || done.OnDisk != before-10 {
			t.Errorf("removed %+v of %d on the disk: %v", done, before, err)
		}
		for round := range 2 {
			for i := range length {
				if d.exists(ns, i) != (i < 10) {
					t.Errorf("round %d: chunk %d is there: %v", round, i, i >= 10)
				}
			}
			d.m.validate(t)
			d.reboot()
			ns = d.namespace(testSpec("m", 256<<10, 1))
		}
		d.unmount()
	})
}

// TestRemovedWhileTheDiskIsOut: it is done, said to be uncertain at once, and
// certain when the disk is back.
func TestRemovedWhileTheDiskIsOut(t *testing.T) {
	for name, scope := range map[string]func(ns store.Namespace) Scope{
		"namespace": func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID} },
		"hashes":    func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID, Hashes: hashesOf(1, 2)} },
		"chain":     func(ns store.Namespace) Scope { return Scope{Namespace: &ns.ID, Hashes: hashesOf(1), Chain: true} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
				s := d.open(1, 1, 100, Declaration{})
				ns := d.namespace(testSpec("m", 256<<10, 1))
				for i := range 150 {
					d.storeChained(s, ns, i, "")
				}
				d.dir.SetFault(func(disktest.Call) disktest.Fault { return disktest.Fault{Err: syscall.EIO} })
				for i := range 5 { // which takes it out of service
					_ = d.load(s, ns, i, 1)
				}
				if d.m.Stats().Disk.InService {
					t.Fatal("the disk is in service")
				}
				began := time.Now()
				if _, err := d.m.Remove(t.Context(), scope(ns)); !errors.Is(err, disk.ErrUncertain) || time.Since(began) > time.Second {
					t.Errorf("removed in %v: %v", time.Since(began), err)
				}
				d.dir.SetFault(nil)
				time.Sleep(5 * time.Minute)
				d.now = time.Now()
				if !d.m.Stats().Disk.InService || d.exists(ns, 1) || d.exists(ns, 2) {
					t.Error("the disk is back with what was removed")
				}
				d.reboot()
				ns = d.namespace(testSpec("m", 256<<10, 1))
				if d.exists(ns, 1) || d.exists(ns, 2) {
					t.Error("what was removed is back after a restart")
				}
				d.unmount()
			})
		})
	}
}

// TestCorruptOnItsWayUp: a chunk that is reported corrupt while it is read from the
// disk is not let in.
func TestCorruptOnItsWayUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 256<<10, 1))
		for i := range 150 {
			d.storeChained(s, ns, i, "")
		}
		hold := make(chan struct{})
		d.dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				<-hold
			}
			return disktest.Fault{}
		})
		if n, err := d.m.Prefetch(ns.ID, []store.ChunkKey{{Hash: testHash(1)}}); n != 1 || err != nil {
			t.Fatal("it is not on the disk")
		}
		synctest.Wait()
		if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1), Corrupt: true}}); err != nil {
			t.Fatal(err)
		}
		close(hold)
		synctest.Wait()
		for range 2 {
			if d.exists(ns, 1) {
				t.Error("it is there")
			}
		}
		d.m.validate(t)
		d.unmount()
	})
}
