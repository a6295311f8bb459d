package embedded

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestPinnedOnTheWayDown: a chunk that is pinned while it is being written, or
// waits to be dropped, stays.
func TestPinnedOnTheWayDown(t *testing.T) {
	for name, wait := range map[string]bool{"being written": false, "waits to be dropped": true} {
		t.Run(name, func(t *testing.T) {
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
				next := 0
				for d.m.Stats().Removed[RemovedEvicted] == 0 && len(d.m.lower.moves) == 0 {
					d.store(s, ns, next, 0)
					next++
					synctest.Wait()
				}
				if wait {
					close(hold)
					synctest.Wait()
				}
				rec, ok := d.m.findLocked(ns.ID, 0, new(testHash(0)))
				if !ok || d.m.live[rec].state != Migrating || d.m.lower.moves[rec].writing == wait {
					t.Fatal("the first chunk is not on its way")
				}
				if got, err := d.m.Pin(ns.ID, chunkKeys(0), PinSoft, time.Hour); err != nil || got.Pinned != 1 {
					t.Fatalf("Pin() = %+v, %v", got, err)
				}
				if !wait {
					close(hold)
				}
				for range 300 {
					if got := d.store(s, ns, next, 0); got != store.PutGranted {
						t.Fatalf("put: %v", got)
					}
					next++
					synctest.Wait()
				}
				if d.inMemory(ns, 0, 1) != 1 {
					t.Error("the pinned chunk went before others")
				}
				d.m.validate(t)
				d.unmount()
			})
		})
	}
}

// TestLongTagsReachTheDisk: as long as they may be, and they can be removed by it.
func TestLongTagsReachTheDisk(t *testing.T) {
	for _, length := range []int{maxTagText, maxTagText + 100} {
		synctest.Test(t, func(t *testing.T) {
			d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
			s := d.open(1, 1, 100, Declaration{})
			ns := d.namespace(testSpec("m", 256<<10, 1))
			tag := strings.Repeat("t", length)
			for i := range 150 {
				d.storeAs(s, ns, PutOptions{SaltTag: tag}, i)
				synctest.Wait()
			}
			if err := d.load(s, ns, 0, 1); err != nil {
				t.Fatalf("%d bytes: %v", length, err)
			}
			if n := len(d.m.tagNumber); n != 1 {
				t.Errorf("%d bytes: %d tags", length, n)
			}
			if err := second(d.m.Remove(d.tb.Context(), Scope{SaltTag: &tag})); err != nil {
				t.Fatal(err)
			}
			for i := range 150 {
				if d.exists(ns, i) {
					t.Fatalf("%d bytes: chunk %d is still there", length, i)
				}
			}
			d.unmount()
		})
	}
}
