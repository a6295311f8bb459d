package embedded

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// link puts chunks of one chain, in that order: chunk n comes after chunk n-1.
func (w *world) link(s Session, ns store.Namespace, length, shards int, chunks ...int) {
	w.tb.Helper()
	hash := func(n int) (h kv.Hash) {
		long := testHash(n)
		copy(h[:], long[:length])
		return h
	}
	for _, n := range chunks {
		for shard := range shards {
			item := store.PutItem{Hash: hash(n), Depth: uint32(n), Shard: uint32(shard)}
			if n > 0 {
				item.Parent = hash(n - 1)
			}
			grants, err := w.m.PutStart(s, ns, []store.PutItem{item})
			if err != nil {
				w.tb.Fatal(err)
			}
			if grants[0].Status != store.PutGranted {
				continue
			}
			if done, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket}}); err != nil || !done[0] {
				w.tb.Fatal(done, err)
			}
		}
	}
}

// gap is the hashes of n chunks of which only the first and the last are known.
func gap(tb testing.TB, length, n int) []byte {
	all := blobOfTest(tb, length, numbered(0, n)...).Bytes()
	holed := bytes.Clone(all)
	clear(holed[length : (n-1)*length])
	return holed
}

func TestAncestors(t *testing.T) {
	const n = 100
	order := numbered(0, n)
	mixed := make([]int, 0, n)
	for i := range n / 4 { // runs of four, the last run first
		mixed = append(mixed, numbered(n-4*i-4, n-4*i)...)
	}
	reversed := make([]int, 0, n)
	for i := range n {
		reversed = append(reversed, n-1-i)
	}
	for name, c := range map[string]struct {
		length, shards int
		order          []int
	}{
		"in a row": {32, 1, order}, "short hashes": {20, 1, order}, "backwards": {32, 1, reversed}, "in runs": {32, 1, mixed}, "of two shards": {32, 2, order},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4<<20)
			s := w.open(1, 1, 100, Declaration{})
			spec := testSpec("m", 4096, c.shards)
			spec.HashBytes = c.length
			ns := w.namespace(spec)
			w.link(s, ns, c.length, c.shards, c.order...)
			v := w.m.View(ns.ID)
			data := gap(t, c.length, n)
			if found, present, stray := v.Ancestors(0, data, c.length, n-1, 1, n-2); found != n-2 || present != n-1 || stray {
				t.Fatalf("found %d, %d present, stray %v", found, present, stray)
			}
			if want := blobOfTest(t, c.length, order...).Bytes(); !bytes.Equal(data, want) {
				t.Error("other hashes")
			}
			v.Close()
			v = w.m.View(ns.ID) // another lookup
			// To the first chunk, and every second place.
			wide := make([]byte, 2*n*c.length)
			last := testHash(n - 1)
			copy(wide[(2*n-1)*c.length:], last[:c.length])
			if found, present, _ := v.Ancestors(0, wide, c.length, 2*n-1, 2, n-1); found != n-1 || present != n {
				t.Fatalf("two apart: found %d, %d present", found, present)
			}
			for i := range n {
				hash := testHash(i)
				if !bytes.Equal(wide[(2*i+1)*c.length:(2*i+2)*c.length], hash[:c.length]) || !bytes.Equal(wide[2*i*c.length:(2*i+1)*c.length], make([]byte, c.length)) {
					t.Fatalf("two apart: chunk %d is another", i)
				}
			}
			v.Close()
		})
	}
}

// TestAncestorsEnd: a chain is followed to where it is broken, and what is there is
// told for as long as nothing else is to be known of it.
func TestAncestorsEnd(t *testing.T) {
	const n = 40
	begin := func(t *testing.T, shards int) (*world, Session, store.Namespace) {
		w := newWorld(t, 4<<20)
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(testSpec("m", 4096, shards))
		w.link(s, ns, 32, shards, numbered(0, n)...)
		return w, s, ns
	}
	want := func(t *testing.T, w *world, ns store.Namespace, wantFound, wantPresent int) {
		t.Helper()
		v := w.m.View(ns.ID)
		defer v.Close()
		data := gap(t, 32, n)
		found, present, stray := v.Ancestors(0, data, 32, n-1, 1, n-2)
		if found != wantFound || present != wantPresent || stray {
			t.Errorf("found %d, %d present, stray %v; want %d and %d", found, present, stray, wantFound, wantPresent)
		}
		if all := blobOfTest(t, 32, numbered(0, n)...).Bytes(); !bytes.Equal(data[(n-1-found)*32:], all[(n-1-found)*32:]) {
			t.Error("other hashes")
		}
	}
	drop := func(w *world, s Session, ns store.Namespace, chunk int, corrupt bool) {
		if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(chunk), Corrupt: corrupt}}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("whole", func(t *testing.T) {
		w, _, ns := begin(t, 1)
		want(t, w, ns, n-2, n-1)
	})
	t.Run("a chunk has gone", func(t *testing.T) {
		w, s, ns := begin(t, 1)
		drop(w, s, ns, 20, true)
		want(t, w, ns, n-1-21, n-21)
	})
	t.Run("the one to begin with has gone", func(t *testing.T) {
		w, s, ns := begin(t, 1)
		drop(w, s, ns, n-1, true)
		want(t, w, ns, 0, 0)
	})
	t.Run("a load has failed", func(t *testing.T) {
		w, s, ns := begin(t, 1)
		drop(w, s, ns, 20, false)
		want(t, w, ns, n-2, n-21)
	})
	t.Run("a shard is missing", func(t *testing.T) {
		w, s, ns := begin(t, 2)
		drop(w, s, ns, 20, true)
		if status := w.store(s, ns, 20, 0); status != store.PutGranted {
			t.Fatal(status)
		}
		// It was put without the one before, so that nothing leads on.
		want(t, w, ns, n-1-20, n-21)
	})
	t.Run("a reset", func(t *testing.T) {
		w, _, ns := begin(t, 1)
		if err := w.m.Reset(ns.ID); err != nil {
			t.Fatal(err)
		}
		want(t, w, w.namespace(testSpec("m", 4096, 1)), 0, 0)
	})
	t.Run("another chain", func(t *testing.T) {
		w, _, ns := begin(t, 1)
		v := w.m.View(ns.ID)
		defer v.Close()
		data := gap(t, 32, n)
		data[0]++
		if found, present, _ := v.Ancestors(0, data, 32, n-1, 1, n-2); found != 0 || present != 0 {
			t.Errorf("found %d, %d present, of a chain that does not begin as the question does", found, present)
		}
	})
	t.Run("told once", func(t *testing.T) {
		w, s, ns := begin(t, 1)
		drop(w, s, ns, 30, false)
		v := w.m.View(ns.ID)
		defer v.Close()
		if v.Exists(0, testHash(30)) != kv.Absent {
			t.Fatal("a chunk whose load has failed is there")
		}
		// Its face is as before, but not to this lookup.
		if found, present, _ := v.Ancestors(0, gap(t, 32, n), 32, n-1, 1, n-2); found != n-2 || present != 0 {
			t.Errorf("found %d, %d present", found, present)
		}
	})
	t.Run("forged", func(t *testing.T) {
		w, s, ns := begin(t, 1)
		// A record that is its own predecessor.
		item := store.PutItem{Hash: testHash(n), Parent: testHash(n), Depth: n}
		grants, err := w.m.PutStart(s, ns, []store.PutItem{item})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket}}); err != nil {
			t.Fatal(err)
		}
		v := w.m.View(ns.ID)
		defer v.Close()
		data := append(gap(t, 32, n), make([]byte, 32)...)
		last := testHash(n)
		copy(data[32*n:], last[:])
		if found, present, _ := v.Ancestors(0, data, 32, n, 1, n-1); found != 0 || present != 0 {
			t.Errorf("found %d, %d present", found, present)
		}
	})
}

// TestAncestorsStray: a chain that is scattered over the records is given up.
func TestAncestorsStray(t *testing.T) {
	const n = 300
	w := newWorld(t, 8<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4096, 1))
	order := numbered(0, n)
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	w.link(s, ns, 32, 1, order...)
	v := w.m.View(ns.ID)
	defer v.Close()
	if found, present, stray := v.Ancestors(0, gap(t, 32, n), 32, n-1, 1, n-2); !stray || found > 2*strayFinds || present != found+1 {
		t.Errorf("found %d, %d present, stray %v", found, present, stray)
	}
}

// TestAncestorsWhileTheStoreChanges follows a chain whose beginning stays and whose
// end comes and goes, beside chunks that lack a shard: what stays is always found,
// what is found is the chain's, and what is not whole is never there.
func TestAncestorsWhileTheStoreChanges(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns, part := w.namespace(testSpec("stay", 4096, 1)), w.namespace(testSpec("part", 4096, 2))
	const lasting, all = 20, 40
	w.link(s, ns, 32, 1, numbered(0, lasting)...)
	whole := blobOfTest(t, 32, numbered(0, all)...).Bytes()
	var (
		done    atomic.Bool
		far     atomic.Int64
		readers sync.WaitGroup
	)
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
		done.Store(true)
	}
	for seed := range uint64(2) {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 8))
			for !done.Load() {
				v, at := w.m.View(ns.ID), lasting-1
				if rng.IntN(2) == 0 {
					at = lasting + rng.IntN(all-lasting)
				}
				data := gap(t, 32, at+1)
				found, present, _ := v.Ancestors(0, data, 32, at, 1, at-1)
				if at < lasting && (found != at-1 || present != at) {
					fail("of %d chunks that stay %d are found and %d there", at, found, present)
				}
				if !bytes.Equal(data[(at-found)*32:], whole[(at-found)*32:(at+1)*32]) {
					fail("another chain's hashes")
				}
				if at >= lasting && found == at-1 {
					far.Add(1)
				}
				v.Close()
				v = w.m.View(part.ID)
				if _, present, _ := v.Ancestors(0, gap(t, 32, all), 32, all-1, 1, all-2); present != 0 {
					fail("chunks that lack a shard are there")
				}
				v.Close()
			}
		})
	}
	rng := rand.New(rand.NewPCG(7, 7))
	for i := 0; (i < 3000 || far.Load() < 100) && i < 300_000 && !done.Load(); i++ {
		switch chunk := lasting + rng.IntN(all-lasting); rng.IntN(4) {
		case 0:
			w.link(s, ns, 32, 1, numbered(lasting, all)...)
		case 1:
			w.link(s, part, 32, 1, all-1, all-2, all-3)
		case 2:
			_ = w.m.ReportFailed(s, part, []store.FailedChunk{{Hash: testHash(all - 1 - rng.IntN(3)), Corrupt: true}})
		default:
			_ = w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(chunk), Corrupt: true}})
		}
	}
	done.Store(true)
	readers.Wait()
	if far.Load() < 100 {
		t.Error("too few chains were whole: the test shows nothing")
	}
	w.m.validate(t)
}

// TestAbandon: what a lookup without an answer was told once, the next one is told
// again, of chunks in memory and on the disk; and nothing is counted.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 2<<20, &disktest.Dir{}, smallDisk())
		defer d.unmount()
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 64<<10, 1))
		const chunks = 60 // more than memory has room for
		for i := range chunks {
			d.store(s, ns, i, 0)
			synctest.Wait()
		}
		var low, high int // on the disk only, in memory
		for i := range chunks {
			hash := testHash(i)
			if _, _, ok := d.m.find(ns.ID, 0, &hash); ok {
				high = i
			} else if d.exists(ns, i) {
				low = i
			}
		}
		for _, chunk := range []int{low, high} {
			if !d.exists(ns, chunk) {
				t.Fatalf("chunk %d is not there", chunk)
			}
			if err := d.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(chunk)}}); err != nil {
				t.Fatal(err)
			}
			before := d.m.Stats().Missed
			v := d.m.View(ns.ID)
			if v.Exists(0, testHash(chunk)) != kv.Absent {
				t.Errorf("chunk %d is there in spite of its load", chunk)
			}
			v.Abandon()
			if d.m.Stats().Missed != before {
				t.Error("counted")
			}
			if d.exists(ns, chunk) {
				t.Errorf("chunk %d: the lookup that counts was not told", chunk)
			}
			if !d.exists(ns, chunk) {
				t.Errorf("chunk %d: told twice", chunk)
			}
		}
	})
}
