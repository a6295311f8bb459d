package embedded

import (
	"math/rand/v2"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// know has the cluster know of a chunk.
func (w *clusterWorld) know(chunk int, e kv.Existence) {
	w.c.known[disk.Key{Namespace: w.m.namespaces[w.ns.ID].digest, Hash: testHash(chunk)}] = e
}

// TestAheadOverTheCluster: whatever is here, in part, hidden, in the cluster or unknown, a
// scan with the hint gives the answers, tiers and reasons that probes one by one give. No
// more is promised than fits, and what is here takes nothing of that.
func TestAheadOverTheCluster(t *testing.T) {
	const chunks = 150
	answers, tiers, short := map[kv.Existence]int{}, map[store.Tier]int{}, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		w := newClusterWorld(t, false)
		w.ns = w.namespace(testSpec("wide", 64<<10, 2)) // 64 of them fit into a promise
		here, there := rng.IntN(40), 40+rng.IntN(61)
		for n := range chunks {
			switch {
			case rng.IntN(200) == 0:
			case rng.IntN(100) < here:
				w.store(w.s, w.ns, n, 0)
				if rng.IntN(50) > 0 { // else a part
					w.store(w.s, w.ns, n, 1)
				}
			}
			if rng.IntN(100) < there {
				w.know(n, kv.Present)
			} else if rng.IntN(2) == 0 {
				w.know(n, kv.Absent)
			}
		}
		hidden := testHash(rng.IntN(chunks))
		if rec, _, ok := w.m.find(w.ns.ID, 0, &hidden); ok {
			w.m.faces.set(rec, faceHidden)
		}
		hashes := blobOfTest(t, 32, numbered(0, chunks)...)
		ahead, alone := w.m.View(w.ns.ID), w.m.View(w.ns.ID)
		next, first, known := 0, 0, 0
		for i := range chunks {
			if i == next {
				told, present := ahead.Ahead(0, hashes, i)
				first, known, next = i, i+present, i+told
			}
			got, want := kv.Present, alone.Exists(0, hashes.At(i))
			if i < first || i >= known {
				got = ahead.Exists(0, hashes.At(i))
			}
			if got != want || ahead.misses != alone.misses {
				t.Fatalf("seed %d, chunk %d: %s and %v, alone %s and %v", seed, i, got, ahead.misses, want, alone.misses)
			}
			answers[want]++
		}
		for i := range chunks {
			got, want := ahead.TierOf(0, hashes.At(i)), alone.TierOf(0, hashes.At(i))
			if got != want || ahead.Slower() != alone.Slower() {
				t.Fatalf("seed %d, chunk %d: tier %d, alone %d", seed, i, got, want)
			}
			tiers[want]++
		}
		if ahead.far.room != alone.far.room {
			t.Errorf("seed %d: %d bytes may still be promised, alone %d", seed, ahead.far.room, alone.far.room)
		}
		short += int(alone.misses[MissCluster])
		ahead.Close()
		alone.Close()
	}
	if len(answers) != 3 || len(tiers) != 2 || short == 0 {
		t.Errorf("answers %v, tiers %v, %d that could not be promised: the test shows nothing", answers, tiers, short)
	}
}

// TestAheadPromisesNothingBeforeAdoption is TestNothingIsPromisedBeforeAdoption for a scan.
func TestAheadPromisesNothingBeforeAdoption(t *testing.T) {
	w := newClusterWorld(t, false)
	w.alive[100] = true
	w.crash()
	w.m.SetCluster(w.c, false)
	w.know(1, kv.Present)
	hashes := blobOfTest(t, 32, 1)
	v := w.m.View(w.ns.ID)
	defer v.Close()
	if told, present := v.Ahead(0, hashes, 0); told != 1 || present != 0 {
		t.Errorf("told of %d, %d are there", told, present)
	}
	w.s = w.open(1, 2, 100, Declaration{})
	if _, present := v.Ahead(0, hashes, 0); present != 1 {
		t.Error("it is not there when all have declared")
	}
}

// TestAncestorsOfWhatIsBelow: of a chunk that is not in memory and may be in the cluster
// nobody knows what comes before it: that is to be asked for by its hashes.
func TestAncestorsOfWhatIsBelow(t *testing.T) {
	w := newClusterWorld(t, false)
	for chunk, e := range map[int]kv.Existence{1: kv.Present, 2: kv.Absent, 3: kv.Unknown} {
		if e != kv.Unknown {
			w.know(chunk, e)
		}
		data := make([]byte, 10*32)
		hash := testHash(chunk)
		copy(data[9*32:], hash[:])
		v := w.m.View(w.ns.ID)
		if found, present, stray := v.Ancestors(0, data, 32, 9, 1, 9); found != 0 || present != 0 || stray != (e != kv.Absent) {
			t.Errorf("%s: found %d, %d present, stray %v", e, found, present, stray)
		}
		v.Close()
	}
}

// TestFarLookupsAllocateLittle: a lookup of what is known to be in the cluster remembers
// what it has promised, in one piece where it could tell how much, and allocates nothing
// for a probe.
func TestFarLookupsAllocateLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const chunks = 1000
	w := newWorld(t, 32<<20)
	w.m.SetCluster(allThere{newFakeCluster()}, false)
	ns := w.namespace(testSpec("m", 4096, 1))
	hashes := blobFrom(t, 0, chunks)
	if n := testing.AllocsPerRun(20, func() {
		v := w.m.View(ns.ID)
		defer v.Close()
		there := v.scan(0, hashes, true)
		for i := range chunks {
			if v.Exists(0, hashes.At(i)) == kv.Present {
				there++
			}
		}
		if there != 2*chunks {
			t.Errorf("%d of %d answers", there, 2*chunks)
		}
	}); n > 3 { // the view, the glance, what was promised
		t.Errorf("%v allocations", n)
	}
}
