package embedded

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
)

// tablesOnly is a segment whose data has no memory: what the kernel counts of it
// is the tables.
type tablesOnly struct {
	segment *shm.Segment
	tables  uint64 // where the data begins
}

func newTablesOnly(tb testing.TB, layout *Layout) *tablesOnly {
	tb.Helper()
	segment, err := shm.NewSegment("test", layout.FileBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = segment.Close() })
	return &tablesOnly{segment: segment, tables: layout.DataOffset}
}

func (t *tablesOnly) Bytes() []byte          { return t.segment.Bytes() }
func (t *tablesOnly) Words() []atomic.Uint64 { return t.segment.Words() }

func (t *tablesOnly) Prepare(offset, n uint64) error {
	if offset >= t.tables {
		return nil
	}
	return t.segment.Prepare(offset, n)
}

func (t *tablesOnly) Collapse(offset, n uint64) error {
	return t.segment.Collapse(offset, min(n, t.tables-min(offset, t.tables)))
}

// resident is how much memory the kernel has given the segment.
func (t *tablesOnly) resident(tb testing.TB) uint64 {
	tb.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(t.segment.FD(), &stat); err != nil {
		tb.Fatal(err)
	}
	return uint64(stat.Blocks) * 512
}

// noPolicy never evicts and takes no memory: a policy's is not the tables'.
type noPolicy struct{ n int }

func (p *noPolicy) Name() string                                      { return "none" }
func (p *noPolicy) Insert(uint32, evict.Chunk)                        { p.n++ }
func (p *noPolicy) Touch(uint32)                                      {}
func (p *noPolicy) Remove(uint32)                                     { p.n-- }
func (p *noPolicy) Victim(func(uint32) bool) (uint32, bool)           { return 0, false }
func (p *noPolicy) VictimOf(uint64, func(uint32) bool) (uint32, bool) { return 0, false }
func (p *noPolicy) Len() int                                          { return p.n }

// counted is a distinct hash for every number.
func counted(n int) (h kv.Hash) {
	for i := range 4 {
		binary.LittleEndian.PutUint64(h[8*i:], (uint64(n)+uint64(i)<<40+1)*0x9E3779B97F4A7C15)
	}
	return h
}

// fillWhole stores chunks whole, without bytes.
func fillWhole(tb testing.TB, m *Master, s Session, ns store.Namespace, from, to, shards int) {
	tb.Helper()
	const batch = 512
	items := make([]store.PutItem, 0, batch*shards)
	commits := make([]store.PutCommit, 0, batch*shards)
	for at := from; at < to; at += batch {
		items, commits = items[:0], commits[:0]
		for n := at; n < min(at+batch, to); n++ {
			for shard := range shards {
				it := store.PutItem{Hash: counted(n), Depth: uint32(n - from), Shard: uint32(shard)}
				if n > from {
					it.Parent = counted(n - 1)
				}
				items = append(items, it)
			}
		}
		// Rank by rank, as shards come.
		grants, err := m.PutStart(s, ns, items)
		if err != nil {
			tb.Fatal(err)
		}
		for i := range grants {
			if grants[i].Status != store.PutGranted {
				tb.Fatalf("chunk %d of %d: %v", at+i/shards, to, grants[i].Status)
			}
			commits = append(commits, store.PutCommit{Ticket: grants[i].Ticket, Checksum: uint32(i)})
		}
		if _, err := m.PutEnd(s, commits); err != nil {
			tb.Fatal(err)
		}
	}
}

// TestMemoryPerChunk measures what a million chunks cost beside their bytes: the
// index, the record table, the slots' entries, and the live state, as the kernel
// and the garbage collector count them. At most 96 bytes a chunk and 8 a shard.
func TestMemoryPerChunk(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts")
	}
	const (
		chunks    = 1 << 20
		dataBytes = chunks * bytesPerRecord
		perChunk  = 96
		perShard  = 8
	)
	for _, shards := range []int{1, 8} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) {
			layout, err := NewLayout([16]byte{1}, dataBytes)
			if err != nil {
				t.Fatal(err)
			}
			memory := newTablesOnly(t, &layout)
			before := heapBytes()
			m, err := Create(memory, layout, Options{
				Alive:     func(uint32, uint64) bool { return true },
				NewPolicy: func(int) evict.Policy { return new(noPolicy) },
				Log:       slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			w := &world{tb: t, m: m, alive: map[uint32]bool{}}
			w.prepare()
			fixed := memory.resident(t) // header, sessions, namespaces, tags: whatever the chunks
			s := w.open(1, 1, 100, Declaration{})
			ns := w.namespace(testSpec("m", bytesPerRecord/shards, shards))
			fillWhole(t, m, s, ns, 0, chunks, shards)
			if got := m.Stats().Chunks; got != chunks {
				t.Fatalf("%d chunks are there", got)
			}
			tables, heap := memory.resident(t)-fixed, heapBytes()-before
			each := float64(tables+heap) / chunks
			limit := float64(perChunk + perShard*shards)
			t.Logf("%.1f bytes a chunk of %d shards, at most %.0f (tables in the segment %.1f, heap %.1f, of which index %.1f)",
				each, shards, limit, float64(tables)/chunks, float64(heap)/chunks, float64(m.table.Bytes())/chunks)
			if each > limit {
				t.Errorf("%.1f bytes a chunk, at most %.0f", each, limit)
			}
			runtime.KeepAlive(m)
		})
	}
}

// heapBytes is what is reachable on the heap.
func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
