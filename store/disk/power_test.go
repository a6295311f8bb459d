package disk_test

import (
	"bytes"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// page returns a page of the file.
func page(dir *disktest.Dir, at int64) (b []byte) {
	dir.Data(func(data []byte) []byte {
		b = bytes.Clone(data[at:][:disk.PageBytes])
		return data
	})
	return b
}

// setPage puts a page into the file.
func setPage(dir *disktest.Dir, at int64, b []byte) {
	dir.Data(func(data []byte) []byte {
		copy(data[at:], b)
		return data
	})
}

// TestPowerLostAfterARemoval: what was removed stays away when the power takes with
// it that the region was begun anew in which its record was; by this process or by
// the one before.
func TestPowerLostAfterARemoval(t *testing.T) {
	for name, restarted := range map[string]bool{"same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				for i := range 24 { // all regions
					r.mustPut(i, 1, 2<<20)
				}
				r.Forget(keyFor(1000))
				r.mustSettle()
				var syncs, synced atomic.Bool
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op != disktest.Sync {
						return disktest.Fault{}
					}
					if !syncs.Load() {
						return disktest.Fault{Err: syscall.EIO}
					}
					synced.Store(true)
					return disktest.Fault{}
				})
				header, record := page(dir, regions(0)), page(dir, regions(0)+disk.PageBytes)
				r.mustPut(24, 1, 2<<20) // in the first region, over chunk 0
				synctest.Wait()
				if bytes.Equal(header, page(dir, regions(0))) {
					t.Fatal("the first region was not begun anew")
				}
				if restarted {
					r.end()
					syncs.Store(true)
					r = start(t, dir, testOptions())
				}
				syncs.Store(true)
				r.mustMiss(1)
				r.Forget(keyFor(1))
				r.mustSettle()
				image := dir.Clone()
				if !synced.Load() { // then these need not have got there
					setPage(image, regions(0), header)
					setPage(image, regions(0)+disk.PageBytes, record)
				}
				r.end()
				r = start(t, image, testOptions())
				r.mustMiss(1)
				r.mustGet(20, 1, 2<<20)
				r.end()
			})
		})
	}
}

// TestRecordsOfALostUse: records of a region's use of which the power took the
// header are not taken for those of the next one.
func TestRecordsOfALostUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		header := page(dir, regions(0))
		for i := 24; i < 26; i++ {
			r.mustPut(i, 1, 2<<20) // in the first region
		}
		r.end()
		setPage(dir, regions(0), header)
		r = start(t, dir, testOptions())
		r.mustMiss(25)
		r.mustPut(26, 1, 2<<20) // over 24, in front of 25
		if at := recordAt(t, dir, 26); at != regions(0)+disk.PageBytes {
			t.Fatalf("it is at %d", at)
		}
		r.mustMiss(25)
		r, _ = r.killed(dir, testOptions())
		r.mustGet(26, 1, 2<<20)
		r.mustMiss(25)
		r.end()
	})
}
