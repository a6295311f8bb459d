package embedded

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

func blobOfTest(tb testing.TB, length int, chunks ...int) kv.HashBlob {
	tb.Helper()
	var blob []byte
	for _, n := range chunks {
		h := testHash(n)
		blob = append(blob, h[:length]...)
	}
	hashes, err := kv.NewHashBlob(blob, length)
	if err != nil {
		tb.Fatal(err)
	}
	return hashes
}

func numbered(from, to int) (chunks []int) {
	for n := from; n < to; n++ {
		chunks = append(chunks, n)
	}
	return chunks
}

// TestAheadSaysWhatExistsSays: whatever is stored in whatever order, a scan with
// the hint gives the answers that probes one by one give, and the hint covers the
// hashes to the last. In order, most are found where they were expected.
func TestAheadSaysWhatExistsSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for round := range 60 {
		w := newWorld(t, 4<<20)
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(testSpec("m", 4096, 1))
		const chunks = 150
		order := numbered(0, chunks)
		if round%3 == 1 {
			rng.Shuffle(chunks, func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		gaps := round % 4 * 5 // of a hundred
		for _, n := range order {
			if rng.IntN(100) >= gaps {
				w.store(s, ns, n, 0)
			}
		}
		for range round % 5 { // other chunks take their numbers
			n := rng.IntN(chunks)
			_ = w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(n), Corrupt: true}})
			w.store(s, ns, 1000+n, 0)
		}
		_ = w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(rng.IntN(chunks))}})
		hidden := testHash(rng.IntN(chunks))
		if rec, _, ok := w.m.find(ns.ID, 0, &hidden); ok {
			w.m.faces.set(rec, faceHidden)
		}
		hashes := blobOfTest(t, 32, numbered(0, chunks)...)
		v := w.m.View(ns.ID)
		next, first, known := 0, 0, 0
		var got [chunks]kv.Existence
		for i := range chunks {
			if i == next {
				told, present := v.Ahead(0, hashes, i)
				first, known, next = i, i+present, i+told
			}
			if got[i] = kv.Present; i < first || i >= known {
				got[i] = v.Exists(0, hashes.At(i))
			}
		}
		if told, present := v.Ahead(0, hashes, chunks); told != 0 || present != 0 || next != chunks {
			t.Errorf("told of %d chunks behind the last, of %d in all", told, next)
		}
		for i := range chunks {
			// In one view a chunk whose load failed stays absent.
			if want := v.Exists(0, hashes.At(i)); got[i] != want {
				t.Fatalf("round %d, chunk %d: %v, alone %v", round, i, got[i], want)
			}
		}
		v.Close()
	}
}

// TestAheadFollows: chunks that were put in order are found without the index, and
// those behind a chunk that was not.
func TestAheadFollows(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 4096, 1))
	for _, n := range append(numbered(0, 100), numbered(200, 300)...) {
		w.store(s, ns, n, 0)
	}
	hashes := blobOfTest(t, 32, append(numbered(0, 100), numbered(200, 300)...)...)
	v := w.m.View(ns.ID)
	defer v.Close()
	if told, present := v.Ahead(0, hashes, 0); told != aheadChunks || present != aheadChunks {
		t.Fatalf("the first: %d, %d", told, present)
	}
	for at := aheadChunks; at < hashes.Len(); {
		n := v.follow(0, hashes, at, min(followChunks, hashes.Len()-at))
		if n == 0 {
			t.Fatalf("chunk %d is not where the one before says", at)
		}
		at += n
	}
	// Nothing is looked for where no record has memory.
	v.run.next = w.m.readable.Load()
	if n := v.follow(0, hashes, 0, 5); n != 0 {
		t.Errorf("%d chunks behind the last record", n)
	}
	v.run.next += 1 << 20
	if n := v.follow(0, hashes, 0, 5); n != 0 {
		t.Errorf("%d chunks far behind the last record", n)
	}
}

// TestFollowLooksAtAll: a record is a chunk's only if all of its identity is, and
// it is whole, of this generation, and nothing else is known of it.
func TestFollowLooksAtAll(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns, part, others := w.namespace(testSpec("m", 4096, 1)), w.namespace(testSpec("p", 4096, 2)), w.namespace(testSpec("o", 4096, 1))
	w.store(s, ns, 1, 0)
	w.store(s, part, 2, 0) // one of two shards
	hash, half := testHash(1), testHash(2)
	rec, _, _ := w.m.find(ns.ID, 0, &hash)
	partly, _, _ := w.m.find(part.ID, 0, &half)
	is := func(ns store.Namespace, group uint32, rec uint32, hash kv.Hash) bool {
		return w.m.isChunk(rec, uint64(scopeOf(uint32(ns.ID), w.m.generationOf(ns.ID), group)), &hash)
	}
	if !is(ns, 0, rec, hash) {
		t.Fatal("it is not found")
	}
	for at := range hash {
		wrong := hash
		wrong[at] ^= 1
		if is(ns, 0, rec, wrong) {
			t.Errorf("found by a hash that differs in byte %d", at)
		}
	}
	if is(ns, 1, rec, hash) || is(others, 0, rec, hash) || is(ns, 0, rec+1, hash) || is(part, 0, partly, half) {
		t.Error("another's, or one that is not whole, was taken")
	}
	for _, f := range []face{faceMissOnce, faceHidden, faceComing} {
		w.m.faces.set(rec, f)
		if is(ns, 0, rec, hash) {
			t.Errorf("found in spite of %b", f)
		}
		w.m.faces.clear(rec, f)
	}
	if err := w.m.Reset(ns.ID); err != nil {
		t.Fatal(err)
	}
	if is(w.namespace(testSpec("m", 4096, 1)), 0, rec, hash) {
		t.Error("found after a reset")
	}
}

// TestFollowWhileTheStoreChanges guesses every record for chunks that come and go:
// one that is never whole is found at none, one that stays is always found at its
// own.
func TestFollowWhileTheStoreChanges(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	stay, churn := w.namespace(testSpec("stay", 8<<10, 1)), w.namespace(testSpec("churn", 8<<10, 2))
	const lasting, coming = 8, 6
	for i := range lasting {
		w.store(s, stay, i, 0)
	}
	own := testHash(0)
	first, _, _ := w.m.find(stay.ID, 0, &own)
	var (
		done    atomic.Bool
		met     atomic.Int64
		readers sync.WaitGroup
	)
	for seed := range uint64(2) {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 8))
			all, whole, never := blobOfTest(t, 32, numbered(0, lasting)...), blobOfTest(t, 32, numbered(0, coming)...), blobOfTest(t, 32, numbered(100, 100+coming)...)
			for !done.Load() {
				v := w.m.View(stay.ID)
				// A neighbour's departure may end the guessing; the index knows the rest.
				v.run = run{next: first, known: true, follows: 1, looked: 1}
				if _, n := v.Ahead(0, all, 0); n != lasting {
					t.Errorf("%d of %d chunks that stay", n, lasting)
					done.Store(true)
				}
				v.Close()
				v = w.m.View(churn.ID)
				for range 50 {
					v.run.next = first + rng.Uint32N(2*lasting+2*coming)
					if v.follow(0, never, rng.IntN(coming), 1) != 0 {
						t.Error("a chunk that lacks a shard was found")
						done.Store(true)
					}
					met.Add(int64(v.follow(0, whole, rng.IntN(coming), 1)))
				}
				v.Close()
			}
		})
	}
	rng := rand.New(rand.NewPCG(7, 7))
	for i := 0; (i < 4000 || met.Load() < 200) && i < 400_000 && !done.Load(); i++ {
		switch chunk := rng.IntN(coming); rng.IntN(3) {
		case 0:
			w.store(s, churn, chunk, 0)
			w.store(s, churn, chunk, 1)
		case 1:
			w.store(s, churn, 100+chunk, 0)
		default:
			_ = w.m.ReportFailed(s, churn, []store.FailedChunk{{Hash: testHash(chunk), Corrupt: true}, {Hash: testHash(100 + chunk), Corrupt: true}})
		}
	}
	done.Store(true)
	readers.Wait()
	if met.Load() < 200 {
		t.Error("too few guesses met what comes and goes: the test shows nothing")
	}
	w.m.validate(t)
}

// TestShortHashesFollow: hashes of 16 bytes are compared with their padding.
func TestShortHashesFollow(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	spec := testSpec("short", 4096, 1)
	spec.HashBytes = 16
	ns := w.namespace(spec)
	var items []store.PutItem
	for n := range 40 {
		var hash kv.Hash
		long := testHash(n)
		copy(hash[:], long[:16])
		items = append(items, store.PutItem{Hash: hash})
	}
	grants, err := w.m.PutStart(s, ns, items)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range grants {
		if done, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: g.Ticket}}); err != nil || !done[0] {
			t.Fatal(fmt.Errorf("%v, %w", done, err))
		}
	}
	v := w.m.View(ns.ID)
	defer v.Close()
	hashes := blobOfTest(t, 16, numbered(0, 40)...)
	if told, present := v.Ahead(0, hashes, 0); told != aheadChunks || present != aheadChunks {
		t.Fatalf("%d, %d", told, present)
	}
	if n := v.follow(0, hashes, aheadChunks, 24); n != 24 {
		t.Errorf("%d of 24", n)
	}
}
