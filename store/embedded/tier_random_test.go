package embedded

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestRandomWithDisk does at random what is done to a store with a disk that
// fails at random: whatever is served has the right bytes, what was removed stays
// away, and the structures agree.
func TestRandomWithDisk(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	failed := uint64(0)
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { failed += randomWithDisk(t, uint64(seed)) })
		})
	}
	if failed == 0 {
		t.Error("no call has failed")
	}
}

// randomFaults breaks one call in rarely.
func randomFaults(random *rand.Rand, rarely int) func(disktest.Call) disktest.Fault {
	var mu sync.Mutex // the generator is not for several goroutines
	return func(c disktest.Call) disktest.Fault {
		mu.Lock()
		n, done := random.IntN(rarely*6), random.IntN(c.Bytes+1)
		mu.Unlock()
		switch n {
		case 0:
			return disktest.Fault{Err: syscall.EIO, Done: done}
		case 1:
			return disktest.Fault{Short: true, Done: done}
		case 2:
			return disktest.Fault{Hang: 30 * time.Second}
		case 3:
			return disktest.Fault{Hang: 100 * time.Millisecond}
		case 4:
			return disktest.Fault{Err: syscall.ENOSPC, Done: done}
		}
		return disktest.Fault{}
	}
}

// randomWithDisk returns how many calls have failed.
func randomWithDisk(t *testing.T, seed uint64) uint64 {
	random := rand.New(rand.NewPCG(seed, 1))
	opts := smallDisk()
	opts.Bytes, opts.RegionBytes = 33<<20, 4<<20 // less than the working set
	d := newDiskWorld(t, 16<<20, &disktest.Dir{}, opts)
	d.walk(shortSteps(rand.New(rand.NewPCG(seed, 3)), nil))
	faults := randomFaults(rand.New(rand.NewPCG(seed, 2)), 60)
	d.dir.SetFault(faults)
	demoted, promoted, failed := uint64(0), uint64(0), uint64(0)
	count := func() {
		st := d.m.Stats()
		demoted, promoted = demoted+st.Tiers.Demoted, promoted+st.Tiers.Promoted
		for _, n := range st.Disk.Errors {
			failed += n
		}
	}
	sessions := uint64(1)
	s := d.open(1, sessions, 100, Declaration{})
	type model struct {
		spec   int
		shards int
		size   int
	}
	models := []model{{0, 1, 64 << 10}, {1, 2, 20_000}, {2, 3, 200_000}}
	namespace := func(m model) store.Namespace { return d.namespace(testSpec(fmt.Sprint("m", m.spec), m.size, m.shards)) }
	// removed holds chunks that must not be there until they are stored again.
	removed := map[[2]int]bool{}
	const chunks = 120
	for step := range 1500 {
		d.now = time.Now()
		m := models[random.IntN(len(models))]
		ns := namespace(m)
		i := random.IntN(chunks)
		switch op := random.IntN(100); {
		case op < 45:
			for shard := range m.shards {
				if random.IntN(50) > 0 { // else it stays in part
					if d.store(s, ns, i, shard) != store.PutRefused {
						delete(removed, [2]int{m.spec, i})
					}
				}
			}
		case op < 80:
			err := d.load(s, ns, i, m.shards)
			if err == nil && removed[[2]int{m.spec, i}] {
				t.Fatalf("step %d: chunk %d of model %d was removed, and is served", step, i, m.spec)
			}
		case op < 84:
			_, _ = d.m.Pin(ns.ID, chunkKeys(i, i+1), PinKind(1+random.IntN(2)), time.Duration(random.IntN(60))*time.Second) // it may have no room
		case op < 87:
			_, _ = d.m.Unpin(ns.ID, chunkKeys(i, i+1, i+2)) // they may not be there
		case op < 89:
			if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(i), Corrupt: random.IntN(2) == 0}}); err != nil {
				t.Fatal(err)
			}
		case op < 91:
			if _, err := d.m.Prefetch(ns.ID, chunkKeys(i, i+1, i+2, i+3)); err != nil {
				t.Fatal(err)
			}
		case op < 93:
			_, _ = d.m.Evict(EvictLimit{Chunks: 1 + random.IntN(10)}) // there may be none
		case op < 94:
			// Done in memory and on the disk; whether a restart may undo it is in the error.
			certain := second(d.m.Remove(d.tb.Context(), Scope{Namespace: &ns.ID, Hashes: hashesOf(i)})) == nil
			if certain {
				removed[[2]int{m.spec, i}] = true
			}
		case op < 95:
			if random.IntN(4) == 0 && d.m.Reset(ns.ID) == nil {
				for c := range chunks {
					removed[[2]int{m.spec, c}] = true
				}
			}
		case op < 96:
			count()
			d.kill()
			d.crash()
			d.dir.SetFault(faults)
			d.mount()
			sessions++
			s = d.open(1, sessions, 100, Declaration{})
		default:
			d.m.Tick()
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
		}
		if step%25 == 0 {
			d.m.validate(t)
		}
	}
	d.dir.SetFault(nil)
	time.Sleep(5 * time.Minute)
	d.now = time.Now()
	synctest.Wait()
	d.m.validate(t)
	if st := d.m.Stats(); st.OpenPuts > len(models)*chunks || len(d.m.lower.coming) != 0 {
		t.Errorf("%d puts and %d promotions are left", st.OpenPuts, len(d.m.lower.coming))
	}
	count()
	t.Logf("%d chunks went down, %d came up, %d calls failed", demoted, promoted, failed)
	if !d.m.Stats().Disk.InService || demoted == 0 || promoted == 0 {
		t.Errorf("%d chunks went down, %d came up, %d calls failed: %+v", demoted, promoted, failed, *d.m.Stats().Disk)
	}
	d.kill()
	return failed
}

// kill ends a tier that may have a call that hangs, and waits for that.
func (d *diskWorld) kill() {
	d.stop()
	<-d.done // an error says that a call hangs
	time.Sleep(time.Minute)
	d.dir = d.dir.Clone()
}

func hashesOf(chunks ...int) (hashes []kv.Hash) {
	for _, c := range chunks {
		hashes = append(hashes, testHash(c))
	}
	return hashes
}
