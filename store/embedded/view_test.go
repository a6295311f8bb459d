package embedded

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestLookupsWhileTheStoreChanges has lookups go on while puts evict, void and
// reset: what stays is found each time, and what is never whole never is, though
// it shares record numbers and buckets with what is.
func TestLookupsWhileTheStoreChanges(t *testing.T) {
	const (
		lasting = 16 // of one shard
		changes = 1500
		met     = 200 // lookups that are to find what comes and goes
	)
	w := newWorld(t, 6<<20)
	s := w.open(1, 1, 100, Declaration{})
	stay := w.namespace(testSpec("stay", 8<<10, 1))
	var keys []store.ChunkKey
	for i := range lasting {
		w.store(s, stay, i, 0)
		keys = append(keys, store.ChunkKey{Hash: testHash(i)})
	}
	w.m.Grant(stay.ID, store.Lease{Engine: "e", Request: "r"}, keys, time.Hour)
	churn := w.namespace(testSpec("churn", 32<<10, 2))
	churnID := churn.ID

	var (
		done    atomic.Bool
		readers sync.WaitGroup
		whole   atomic.Int64
	)
	// Chunks below 100 are stored whole, those from 100 on in part.
	for seed := range uint64(3) {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 5))
			for !done.Load() {
				v := w.m.View(stay.ID)
				for i := range lasting {
					if v.Exists(0, testHash(i)) != kv.Present {
						t.Errorf("chunk %d, which stays, was missed", i)
						done.Store(true)
					}
				}
				v.Close()
				v = w.m.View(churnID)
				for range 2 * lasting {
					if v.Exists(0, testHash(rng.IntN(100))) == kv.Present {
						whole.Add(1)
					}
					if v.Exists(0, testHash(100+rng.IntN(100))) == kv.Present {
						t.Error("a chunk that lacks a shard was found")
						done.Store(true)
					}
				}
				v.Close()
			}
		})
	}
	rng := rand.New(rand.NewPCG(7, 7))
	for i := 0; (i < changes || whole.Load() < met) && i < 100*changes && !done.Load(); i++ {
		switch chunk := rng.IntN(100); rng.IntN(12) {
		case 0:
			if err := w.m.Reset(churn.ID); err != nil {
				t.Fatal(err)
			}
			churn = w.namespace(testSpec("churn", 32<<10, 2))
		case 1:
			_ = w.m.ReportFailed(s, churn, []store.FailedChunk{{Hash: testHash(chunk), Corrupt: true}})
		case 2:
			g, err := w.m.PutStart(s, churn, []store.PutItem{{Hash: testHash(100 + chunk), Shard: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.m.PutRevoke(s, []uint64{g[0].Ticket}); err != nil {
				t.Fatal(err)
			}
		case 3, 4, 5:
			w.store(s, churn, 100+chunk, 0)
		default:
			w.store(s, churn, chunk, 0)
			w.store(s, churn, chunk, 1)
		}
	}
	done.Store(true)
	readers.Wait()
	if whole.Load() < met {
		t.Error("too few lookups found any of what comes and goes: the test shows nothing")
	}
	w.m.validate(t)
}

// TestLookupsDoNotWait: a lookup is answered while somebody holds the master's
// lock, as a writer does that has been put to sleep.
func TestLookupsDoNotWait(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.store(s, ns, 1, 0)
	if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1)}}); err != nil {
		t.Fatal(err)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.exists(ns, 1) || !w.exists(ns, 1) || w.exists(ns, 2) {
		t.Error("a failed load was not told once, and once only")
	}
}

// TestAFailedLoadIsToldToOneLookup: of many lookups at once, one misses.
func TestAFailedLoadIsToldToOneLookup(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.store(s, ns, 1, 0)
	for range 50 {
		if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(1)}}); err != nil {
			t.Fatal(err)
		}
		var missed atomic.Int32
		var lookups sync.WaitGroup
		for range 4 {
			lookups.Go(func() {
				v := w.m.View(ns.ID)
				defer v.Close()
				first := v.Exists(0, testHash(1))
				if v.Exists(0, testHash(1)) != first {
					t.Error("one lookup was told both")
				}
				if first == kv.Absent {
					missed.Add(1)
				}
			})
		}
		lookups.Wait()
		if missed.Load() != 1 {
			t.Fatalf("%d lookups were told of one failed load", missed.Load())
		}
	}
}

func TestHiddenChunksAreNotFound(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	for i := range 40 {
		w.store(s, ns, i, 0)
	}
	h := testHash(17)
	rec, _, _ := w.m.find(ns.ID, 0, &h)
	w.m.faces.set(rec, faceHidden)
	for i := range 40 {
		if w.exists(ns, i) != (i != 17) {
			t.Errorf("chunk %d: found %v", i, w.exists(ns, i))
		}
	}
	if !w.m.faces.clear(rec, faceHidden) || !w.exists(ns, 17) {
		t.Error("it stays hidden")
	}
}

// TestLookupsAllocateNothing: a probe costs no allocation, present or absent.
func TestLookupsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 1))
	w.store(s, ns, 1, 0)
	v := w.m.View(ns.ID)
	defer v.Close()
	for chunk, want := range map[int]kv.Existence{1: kv.Present, 2: kv.Absent} {
		hash := testHash(chunk)
		if n := testing.AllocsPerRun(100, func() {
			if v.Exists(0, hash) != want {
				t.Error("wrong")
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", want, n)
		}
	}
}
