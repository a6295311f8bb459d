package embedded

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// servedRight loads every chunk that the store claims to have and fails on bytes
// that are wrong although their checksum fits. It returns how many were right.
func (w *world) servedRight(spec *kv.NamespaceSpec, chunks int) int {
	w.m.Reap()
	s := w.open(99, 99, 999, Declaration{})
	ns := w.namespace(spec)
	right := 0
	for chunk := range chunks {
		r, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(chunk)}})
		if err != nil {
			w.tb.Fatal(err)
		}
		if r[0].Status != store.GetReady {
			continue
		}
		got := w.place(r[0].Place)
		if crc32.Checksum(got, castagnoli) != r[0].Checksum {
			continue // the loading worker would report it
		}
		want := make([]byte, len(got))
		fillShard(want, chunk, 0)
		if !bytes.Equal(got, want) {
			w.tb.Fatalf("chunk %d: wrong bytes with a checksum that fits", chunk)
		}
		right++
	}
	return right
}

// hasShards tells whether the first shards of a chunk can be got.
func (w *world) hasShards(ns store.Namespace, chunk, shards int) bool {
	s := w.open(98, 98, 998, Declaration{})
	for shard := range shards {
		r, err := w.m.Get(s, ns, store.Lease{}, []store.GetItem{{Hash: testHash(chunk), Shard: uint32(shard)}})
		if err != nil || r[0].Status != store.GetReady {
			return false
		}
		if err := w.m.Release(s, []uint64{r[0].Ref}); err != nil {
			return false
		}
	}
	return true
}

// TestTornTables adopts segments in which only some of the words that an
// operation wrote have arrived, in no order: worse than a process that dies
// between two stores.
func TestTornTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	spec := testSpec("m", 60<<10, 1)
	const chunks = 60
	kept := 0
	for range 250 {
		w := newWorld(t, 2<<20)
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(spec)
		for range rng.IntN(60) {
			w.store(s, ns, rng.IntN(chunks), 0)
		}
		before := slices.Clone(w.mem)
		for range 1 + rng.IntN(3) {
			switch rng.IntN(6) {
			case 0:
				_ = w.m.Reset(ns.ID)
				ns = w.namespace(spec)
			case 1:
				_ = w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(rng.IntN(chunks)), Corrupt: true}})
			default:
				w.store(s, ns, rng.IntN(chunks), 0)
			}
		}
		// The data as a whole is old or new, so that old bytes with their old
		// checksum can stand under a new record.
		if data := w.m.seg.DataOffset; rng.IntN(2) == 0 {
			copy(w.mem[data:], before[data:])
		}
		for at := headerBytes; at < int(w.m.seg.DataOffset); at += 8 {
			if !bytes.Equal(w.mem[at:at+8], before[at:at+8]) && rng.IntN(2) == 0 {
				copy(w.mem[at:], before[at:at+8])
			}
		}
		w.alive[100] = false
		w.crash()
		w.m.validate(t)
		kept += w.servedRight(spec, chunks)
		w.m.validate(t)
	}
	if kept < 500 {
		t.Fatalf("only %d chunks survived: the test shows nothing", kept)
	}
}

// TestCorruptTables adopts segments whose tables were written over.
func TestCorruptTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	spec := testSpec("m", 30<<10, 2)
	for range 120 {
		w := newWorld(t, 2<<20)
		s := w.open(1, 1, 100, Declaration{})
		ns := w.namespace(spec)
		for i := range 30 {
			w.store(s, ns, i, 0)
			w.store(s, ns, i, 1)
		}
		l := w.m.seg
		used := [][2]uint64{
			{l.sessionsAt, 64}, {l.namespacesAt, 600}, {l.slabsAt, slabEntryBytes},
			{l.recordsAt, 30 * recordBytes}, {l.slotsAt, 60 * slotEntryBytes},
		}
		for range 1 + rng.IntN(4) {
			area := used[rng.IntN(len(used))]
			at := area[0] + rng.Uint64N(area[1])
			switch rng.IntN(3) {
			case 0:
				w.mem[at] ^= 1 << rng.IntN(8)
			case 1:
				w.mem[at] = 0xFF
			case 2: // a whole entry in the wrong place
				copy(w.mem[area[0]+rng.Uint64N(area[1]/8)*8:][:64], slices.Clone(w.mem[area[0]:][:64]))
			}
		}
		w.alive[100] = false
		m, _, err := Adopt(w.mem, w.options())
		if err != nil {
			t.Fatal(err)
		}
		w.m = m
		w.m.validate(t)
		w.m.Reap()
		w.servedRight(spec, 30)
		for i := range 30 {
			if ns := w.namespace(spec); w.exists(ns, i) && !w.hasShards(ns, i, 2) {
				t.Fatalf("chunk %d counts as whole and lacks a shard", i)
			}
		}
		s = w.open(2, 2, 200, Declaration{Reads: []uint64{rng.Uint64()}, Puts: []uint64{rng.Uint64(), uint64(rng.IntN(100)) << 32}})
		ns = w.namespace(spec)
		for i := range 60 {
			w.store(s, ns, 100+i, i%2)
		}
		w.m.validate(t)
	}
}

func FuzzReadLayout(f *testing.F) {
	l, err := NewLayout([16]byte{1}, 4<<20)
	if err != nil {
		f.Fatal(err)
	}
	page := make([]byte, headerBytes)
	l.writeHeader(page)
	f.Add(page, l.FileBytes)
	f.Fuzz(func(t *testing.T, b []byte, n uint64) {
		got, err := ReadLayout(b, n)
		if err == nil && (got.FileBytes != n || got.DataOffset >= n) {
			t.Fatalf("accepted %+v for %d bytes", got, n)
		}
	})
}

// TestStoringAShardSparesItsChunk: room for the second shard must not come from
// evicting the first one's chunk.
func TestStoringAShardSparesItsChunk(t *testing.T) {
	w := newWorld(t, 2<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 512<<10, 2)) // four slots
	w.store(s, ns, 1, 0)
	w.store(s, ns, 2, 0)
	w.store(s, ns, 2, 1)
	w.store(s, ns, 3, 0) // full; chunk 1 is the least recent
	if got := w.store(s, ns, 1, 1); got != store.PutGranted {
		t.Fatalf("second shard: %v", got)
	}
	if !w.checkBytes(s, ns, 1, 0) || !w.checkBytes(s, ns, 1, 1) {
		t.Fatal("the chunk was evicted for its own shard")
	}
	w.m.validate(t)
}
