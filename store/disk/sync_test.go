package disk_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// slowSyncs makes each sync of the data file take so long.
func slowSyncs(dir *disktest.Dir, each time.Duration) {
	dir.SetFault(func(c disktest.Call) disktest.Fault {
		if c.Op == disktest.Sync {
			return disktest.Fault{Hang: each}
		}
		return disktest.Fault{}
	})
}

// TestSlowSync: a removal that finds the data file unsynced waits for a sync that
// takes longer than a write may, and the disk stays in service.
func TestSlowSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(0, 1, 2<<20)
		synctest.Wait()
		slowSyncs(dir, 8*time.Second)
		for i := 1; i < 6; i++ {
			r.mustPut(i, 1, 2<<20) // one region more
		}
		r.Forget(keyFor(1))
		r.mustSettle()
		if s := r.Stats(); !s.InService || s.Errors[disk.KindTimeout] != 0 {
			t.Errorf("%+v", s)
		}
		r.end()
	})
}

// TestSyncedAhead: a region that was begun is synced at once, and the removal that
// comes later does not wait for that.
func TestSyncedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		before := dir.Calls(disktest.Sync)
		r.mustPut(0, 1, 2<<20)
		synctest.Wait()
		if n := dir.Calls(disktest.Sync) - before; n != 1 {
			t.Errorf("%d syncs after a region was begun", n)
		}
		slowSyncs(dir, time.Hour)
		r.Forget(keyFor(0))
		r.mustSettle()
		dir.SetFault(nil)
		r.end()
	})
}

// TestEndWhileItSyncs: the daemon's end waits for a sync as for any call, however
// long it may take.
func TestEndWhileItSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		slowSyncs(dir, 8*time.Second)
		r.mustPut(0, 1, 2<<20)
		synctest.Wait() // it is under way
		r.stop()
		began := time.Now()
		if err := <-r.done; err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("Run() = %v after %v", err, time.Since(began))
		}
		time.Sleep(time.Minute) // the call returns; the bubble wants all to end
	})
}
