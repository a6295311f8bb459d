package disk_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// regions returns where so many regions of the small tier end.
func regions(n int64) int64 { return 1<<20 + n*8<<20 }

func length(dir *disktest.Dir) (n int64) {
	dir.Data(func(data []byte) []byte { n = int64(len(data)); return data })
	return n
}

// TestFullTakesNothing: what a region that does not fit could have of the disk is
// given back.
func TestFullTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{Room: regions(3) + 4<<20}
		r := start(t, dir, testOptions())
		for i := range 30 {
			r.mustPut(i, 1, 2<<20)
			if n := length(dir); n > regions(3) {
				t.Fatalf("%d bytes of the file are of no use", n-regions(3))
			}
		}
		r.end()
	})
}

// TestRoomAgain: a tier that stayed small because the disk was full grows when
// there is room.
func TestRoomAgain(t *testing.T) {
	for _, few := range []int64{0, 3} {
		t.Run(fmt.Sprint(few), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{Room: regions(few) + 4<<20}
				r := start(t, dir, testOptions())
				for i := range 30 {
					if err := r.put(i, 1, 2<<20); (err != nil) != (few == 0) {
						t.Fatalf("chunk %d on a disk with room for %d regions: %v", i, few, err)
					}
				}
				dir.SetRoom(0)
				time.Sleep(time.Minute)
				for i := range 24 {
					r.mustPut(i, 1, 2<<20)
				}
				for i := range 24 {
					r.mustGet(i, 1, 2<<20)
				}
				if s := r.Stats(); s.UsedBytes != 8*8<<20 {
					t.Errorf("%d bytes are used", s.UsedBytes)
				}
				r.end()
			})
		})
	}
}

// TestResetOnAFullDisk: that a reset can't be noted keeps nobody from writing
// where there is room.
func TestResetOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.WriteFile {
				return disktest.Fault{Err: syscall.ENOSPC}
			}
			return disktest.Fault{}
		})
		r.Reset([32]byte{200})
		for i := range 20 {
			time.Sleep(3 * time.Second)
			r.mustPut(10+i, 1, 4096)
			r.mustGet(10+i, 1, 4096)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Settle(ctx); !errors.Is(err, disk.ErrUncertain) {
			t.Errorf("Settle() = %v", err)
		}
		dir.SetFault(nil)
		time.Sleep(time.Minute)
		if err := r.Settle(t.Context()); err != nil {
			t.Error(err)
		}
		r.end()
	})
}

// TestRegionCutShort: a region that was there and of which the file has only a
// part is allocated before it is written to again.
func TestRegionCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		r.end()
		dir.Data(func(data []byte) []byte { return data[:regions(5)+3<<20] })
		dir = dir.Clone()
		dir.SetRoom(regions(5) + 3<<20)
		r = start(t, dir, testOptions())
		for i := 100; i < 160; i++ {
			r.mustPut(i, 1, 2<<20)
			r.mustGet(i, 1, 2<<20)
		}
		r.end()
	})
}

// TestRegionThatIsNotBegun: a region that can't be begun anew keeps what it has.
func TestRegionThatIsNotBegun(t *testing.T) {
	for name, err := range map[string]error{"fails": syscall.EIO, "full": syscall.ENOSPC} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				for i := range 24 {
					r.mustPut(i, 1, 2<<20)
				}
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == disktest.Write {
						return disktest.Fault{Err: err}
					}
					return disktest.Fault{}
				})
				if err := r.put(24, 1, 2<<20); err == nil {
					t.Fatal("it was written")
				}
				dir.SetFault(nil)
				time.Sleep(time.Minute)
				for i := range 24 {
					r.mustGet(i, 1, 2<<20)
				}
				for i := 24; i < 40; i++ {
					r.mustPut(i, 1, 2<<20)
					r.mustGet(i, 1, 2<<20)
				}
				r.end()
			})
		})
	}
}

// TestRemovedWhileItsRegionIsBegun: what is removed in the moment in which its
// region is given up does not come back.
func TestRemovedWhileItsRegionIsBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		for i := range 24 {
			r.mustPut(i, 1, 2<<20)
		}
		var killed *disktest.Dir
		hold := make(chan struct{})
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write && c.Offset == regions(0) {
				<-hold
				return disktest.Fault{Torn: func(image *disktest.Dir) { killed = image }} // nothing of the header came
			}
			return disktest.Fault{}
		})
		done := make(chan error, 1)
		go func() { done <- r.put(24, 1, 2<<20) }()
		synctest.Wait()
		r.mustMiss(0)
		if n := r.ForgetWithTag(nil, keyFor(0)); n != 1 {
			t.Errorf("%d chunks were there", n)
		}
		if err := r.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i := 25; i < 40; i++ {
			r.mustPut(i, 1, 2<<20)
			r.mustGet(i, 1, 2<<20)
		}
		r.end()
		r = start(t, killed, testOptions())
		r.mustMiss(0)
		r.mustGet(1, 1, 2<<20)
		r.end()
	})
}
