package disk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		const n = 40
		for i := range n {
			r.mustPut(i, 2, 30_000)
		}
		random := rand.New(rand.NewPCG(3, 4))
		dir.Data(func(data []byte) []byte {
			for range 60 {
				data[1<<20+random.IntN(n*64<<10)] ^= 1 << random.IntN(8)
			}
			return data
		})
		lost := 0
		for i := range n {
			if err := r.get(i, 2, 30_000); errors.Is(err, disk.ErrDamaged) {
				lost++
				r.mustMiss(i)
			} else if err != nil {
				t.Errorf("chunk %d: %v", i, err)
			}
		}
		s := r.Stats()
		if lost == 0 || lost == n || s.Errors[disk.KindDamaged] != uint64(lost) || !s.InService {
			t.Errorf("%d of %d lost, %+v", lost, n, s)
		}
		r.end()
		r = start(t, dir, testOptions())
		for i := range n {
			if err := r.get(i, 2, 30_000); err != nil && !errors.Is(err, disk.ErrDamaged) && !errors.Is(err, errMiss) {
				t.Errorf("chunk %d: %v", i, err)
			}
		}
		r.end()
	})
}

func TestSourceThatIsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &disktest.Dir{}, testOptions())
		for i, bytes := range []int{4096, 3 << 20} {
			source := content(i, 2, bytes)
			c := chunkFor(i, source)
			source[1][bytes/2] ^= 1
			done := make(chan error, 1)
			if !r.Demote(c, source, func(err error) { done <- err }) {
				t.Fatal("refused")
			}
			if err := <-done; !errors.Is(err, disk.ErrSource) {
				t.Errorf("%d bytes: %v", bytes, err)
			}
			r.mustMiss(i)
		}
		r.mustPut(5, 1, 4096)
		r.mustGet(5, 1, 4096)
		r.end()
	})
}

func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{Room: 1<<20 + 3*8<<20 + 4<<20}
		r := start(t, dir, testOptions())
		const shard = 2 << 20
		for i := range 30 {
			r.mustPut(i, 1, shard)
		}
		for i := 24; i < 30; i++ {
			r.mustGet(i, 1, shard)
		}
		r.mustMiss(0)
		s := r.Stats()
		if s.UsedBytes != 3*8<<20 || s.Errors[disk.KindFull] == 0 || !s.InService {
			t.Errorf("%+v", s)
		}
		r.end()
	})
}

func TestFullAtWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		full := func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Write {
				return disktest.Fault{Err: syscall.ENOSPC}
			}
			return disktest.Fault{}
		}
		dir.SetFault(full)
		if err := r.put(2, 1, 4096); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("demote to a full disk: %v", err)
		}
		calls := dir.Calls(disktest.Write)
		if err := r.put(3, 1, 4096); err == nil || dir.Calls(disktest.Write) != calls {
			t.Errorf("a full disk was written to again at once: %v", err)
		}
		r.mustGet(1, 1, 4096) // what is there is served
		dir.SetFault(nil)
		time.Sleep(time.Minute)
		r.mustPut(3, 1, 4096)
		r.mustGet(3, 1, 4096)
		r.end()
	})
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		op   disktest.Op
		f    disktest.Fault
		kind disk.ErrorKind
	}{
		{"read error", disktest.Read, disktest.Fault{Err: syscall.EIO, Done: 100}, disk.KindIO},
		{"short read", disktest.Read, disktest.Fault{Short: true, Done: 100}, disk.KindShort},
		{"write error", disktest.Write, disktest.Fault{Err: syscall.EIO, Done: 2000}, disk.KindIO},
		{"short write", disktest.Write, disktest.Fault{Short: true, Done: 2000}, disk.KindShort},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				r := start(t, dir, testOptions())
				for i := range 20 {
					r.mustPut(i, 1, 8192)
				}
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if c.Op == test.op {
						return test.f
					}
					return disktest.Fault{}
				})
				for i := range 10 {
					if test.op == disktest.Read {
						if err := r.get(i, 1, 8192); err == nil {
							t.Errorf("chunk %d was read", i)
						}
					} else if err := r.put(100+i, 1, 8192); err == nil {
						t.Errorf("chunk %d was written", i)
					}
				}
				s := r.Stats()
				// Marking what was half written may fail, too, before it is out of service.
				if n := s.Errors[test.kind]; s.InService || s.Opened != 1 || n < 3 || n > 6 {
					t.Errorf("after ten calls that failed: %+v", s)
				}
				r.mustMiss(15) // it is not even asked
				time.Sleep(10 * time.Minute)
				if s := r.Stats(); s.InService {
					t.Error("it is in service although probes fail")
				}
				dir.SetFault(nil)
				time.Sleep(2 * time.Minute)
				if !r.Stats().InService {
					t.Fatal("it did not come back")
				}
				r.mustGet(15, 1, 8192)
				r.mustPut(200, 1, 8192)
				r.end()
				r = start(t, dir, testOptions())
				for i := range 220 {
					// A write that failed half way may have left its header.
					if err := r.get(i, 1, 8192); err != nil && !errors.Is(err, errMiss) && !errors.Is(err, disk.ErrDamaged) {
						t.Errorf("chunk %d: %v", i, err)
					}
				}
				r.mustGet(15, 1, 8192)
				r.mustGet(200, 1, 8192)
				r.end()
			})
		})
	}
}

func TestHang(t *testing.T) {
	for _, op := range []disktest.Op{disktest.Read, disktest.Write} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				opts := testOptions()
				r := start(t, dir, opts)
				for i := range 40 {
					r.mustPut(i, 1, 8192)
				}
				// Every call begun in the 30 seconds returns at their end.
				end := time.Now().Add(30 * time.Second)
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if left := time.Until(end); c.Op == op && left > 0 {
						return disktest.Fault{Hang: left}
					}
					return disktest.Fault{}
				})
				var open sync.WaitGroup
				began := time.Now()
				for i := range 40 {
					into := [][]byte{make([]byte, 8192)}
					open.Add(1)
					var taken bool
					done := func(err error) {
						if took := time.Since(began); took > 3*time.Second {
							t.Errorf("chunk %d was answered after %v", i, took)
						}
						open.Done()
					}
					if op == disktest.Read {
						taken = r.Fetch(keyFor(i), into, func(_ *disk.Chunk, err error) { done(err) })
					} else {
						source := content(100+i, 1, 8192)
						taken = r.Demote(chunkFor(100+i, source), source, done)
					}
					if !taken {
						t.Errorf("chunk %d was refused", i)
						open.Done()
					}
				}
				open.Wait()
				if s := r.Stats(); s.InService || s.Errors[disk.KindTimeout] == 0 {
					t.Errorf("the disk hangs, and is in service: %+v", s)
				}
				for range 10 {
					r.mustMiss(20)
					if r.Fetch(keyFor(20), [][]byte{make([]byte, 8192)}, func(*disk.Chunk, error) { t.Error("called") }) {
						t.Error("a fetch was taken")
					}
					if err := r.put(500, 1, 8192); err == nil {
						t.Error("a demotion was taken")
					}
					time.Sleep(time.Second)
				}
				time.Sleep(3 * time.Minute)
				if !r.Stats().InService {
					t.Fatal("it did not come back")
				}
				for i := range 40 {
					r.mustGet(i, 1, 8192)
				}
				r.mustPut(600, 1, 8192)
				r.end()
			})
		})
	}
}

func TestHangAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, testOptions())
		r.mustPut(1, 1, 4096)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Read {
				return disktest.Fault{Hang: time.Hour}
			}
			return disktest.Fault{}
		})
		done := make(chan error, 1)
		if !r.Fetch(keyFor(1), [][]byte{make([]byte, 4096)}, func(_ *disk.Chunk, err error) { done <- err }) {
			t.Fatal("refused")
		}
		synctest.Wait() // it is under way
		r.stop()
		began := time.Now()
		if err := <-r.done; err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("Run() = %v after %v", err, time.Since(began))
		}
		if err := <-done; err == nil {
			t.Error("the fetch was answered well")
		}
		time.Sleep(2 * time.Hour) // the call returns; the bubble wants all to end
	})
}

func TestHangAtStart(t *testing.T) {
	for _, op := range []disktest.Op{disktest.Open, disktest.ReadFile, disktest.Read, disktest.Allocate} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := &disktest.Dir{}
				if op != disktest.Allocate {
					r := start(t, dir, testOptions())
					r.mustPut(1, 1, 4096)
					r.end()
				}
				end := time.Now().Add(time.Minute)
				dir.SetFault(func(c disktest.Call) disktest.Fault {
					if left := time.Until(end); c.Op == op && left > 0 {
						return disktest.Fault{Hang: left}
					}
					return disktest.Fault{}
				})
				r := start(t, dir, testOptions())
				r.mustMiss(1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				r.Reset([32]byte{42})
				if err := r.Settle(ctx); err == nil {
					t.Error("a reset was acknowledged that nobody noted")
				}
				time.Sleep(10 * time.Minute)
				if op != disktest.Allocate {
					r.mustGet(1, 1, 4096)
				}
				r.mustPut(2, 1, 4096)
				if err := r.Settle(t.Context()); err != nil {
					t.Error(err)
				}
				r.end()
			})
		})
	}
}
