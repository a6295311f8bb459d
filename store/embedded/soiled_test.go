package embedded

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestSoiledUntilClean: a master that adopts a segment knows whether the last reset
// has come through in the cluster.
func TestSoiledUntilClean(t *testing.T) {
	w := newClusterWorld(t, false)
	digest := w.m.namespaces[w.ns.ID].digest
	adopt := func(want bool) {
		t.Helper()
		w.crash()
		c := newFakeCluster()
		c.objects, c.left = w.c.objects, w.c.left
		w.c = c
		w.m.SetCluster(c, false)
		if soiled, opened := c.soiled[digest]; !opened || soiled != want {
			t.Errorf("soiled %v, want %v", soiled, want)
		}
	}
	adopt(false)
	for range 2 {
		if err := w.m.Reset(w.ns.ID); err != nil {
			t.Fatal(err)
		}
		w.m.Tick() // the fake has left it
		adopt(true)
		w.m.Tick()
		adopt(true)
		w.c.soiled[digest], w.c.left[digest] = false, false
		w.m.Tick()
		adopt(false)
		w.c.left[digest] = true // what came late is to be removed
		w.m.Tick()
		adopt(true)
		w.c.soiled[digest], w.c.left[digest] = false, false
		w.m.Tick()
	}
	adopt(false)
}

// TestResetWhileTheDiskHangs: the cluster's part of a reset has all of the time, and
// both together take no longer.
func TestResetWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		c := newFakeCluster()
		d.m.SetCluster(c, false)
		ns := d.namespace(testSpec("m", 128<<10, 1))
		hold := make(chan struct{})
		d.dir.SetFault(func(disktest.Call) disktest.Fault { <-hold; return disktest.Fault{} })
		begun := time.Now()
		if err := d.m.Reset(ns.ID); !errors.Is(err, disk.ErrUncertain) {
			t.Errorf("the disk's part: %v", err)
		}
		if took := time.Since(begun); took != settleTimeout {
			t.Errorf("it took %s of its clock", took)
		}
		if len(c.resets) != 1 || !c.resets[0].Equal(begun) {
			t.Errorf("resets of the cluster at %v, want one at %v", c.resets, begun)
		}
		close(hold)
		d.unmount()
	})
}
