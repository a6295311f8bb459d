package disk

import (
	"io/fs"
	"log/slog"
	"testing"
)

// noDir is a directory that is never asked.
type noDir struct{}

func (noDir) OpenData(string) (File, error)        { return nil, fs.ErrNotExist }
func (noDir) ReadFile(string, int) ([]byte, error) { return nil, fs.ErrNotExist }
func (noDir) WriteFile(string, []byte) error       { return fs.ErrNotExist }
func (noDir) Buffer(bytes int) []byte              { return make([]byte, bytes) }

// swept returns a tier that serves, and what enters a chunk in its catalog.
func swept(t *testing.T) (r *Tier, enter func(i byte) [2]uint64) {
	t.Helper()
	r, err := New(noDir{}, Options{Bytes: MinBytes, BufferBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.phase = serving
	r.log.begin(0, 1)
	return r, func(i byte) [2]uint64 {
		h := recordHeader{Chunk: Chunk{Key: Key{Hash: [32]byte{i}}}, birth: r.removed.count}
		if !r.enterLocked(&h, place{region: 0, page: uint32(i), pages: 1, sequence: 1}) {
			t.Fatal("no entry")
		}
		return keyOf(&h.Key)
	}
}

// TestSweptAfterBound: when the list of removals gives up the oldest chunks, they
// leave the catalog, and lookups do not have to look harder for ever.
func TestSweptAfterBound(t *testing.T) {
	r, enter := swept(t)
	old := enter(1)
	for i := range uint64(maxRemovalLines + 1) {
		r.voidLocked([2]uint64{i, 1})
	}
	young := enter(2)
	if _, there := r.catalog.find(old); !there || r.removed.floor == 0 {
		t.Fatalf("a floor of %d", r.removed.floor)
	}
	r.sweepIfDue()
	if _, there := r.catalog.find(old); there || r.swept < r.removed.wide {
		t.Errorf("a void chunk stays in the catalog; swept up to %d of %d", r.swept, r.removed.wide)
	}
	if _, there := r.catalog.find(young); !there {
		t.Error("one that counts is gone")
	}
}

// TestBoundIsSeen: what a bounded list voids is void at once, also if all removals
// before were swept.
func TestBoundIsSeen(t *testing.T) {
	l := newRemovals(1)
	for i := range uint64(maxRemovalLines - 1) {
		l.add(chunkMark([2]uint64{i, 1}))
	}
	l.addWide(tagMark("tag"))
	swept := l.wide
	l.supersede(chunkMark([2]uint64{0, 2}), 1)
	if l.floor == 0 || l.wide <= swept {
		t.Errorf("a floor of %d by number %d, after %d", l.floor, l.wide, swept)
	}
}

// TestCountIsNotSplit: who removes by namespace or tag counts all of the chunks,
// also when the control loop looks around before it has begun to.
func TestCountIsNotSplit(t *testing.T) {
	const n = 3
	for name, counts := range map[string]bool{"who counts": true, "who does not": false} {
		t.Run(name, func(t *testing.T) {
			r, enter := swept(t)
			for i := range byte(n) {
				enter(i)
			}
			want := 0
			if counts {
				r.mu.Lock()
				r.removeWideLocked(tagMark(""))
				r.mu.Unlock()
				want = n
			} else {
				r.Reset([32]byte{})
			}
			r.sweepIfDue()
			if got := r.dropVoid(); got != want {
				t.Errorf("%d chunks were left to be counted, want %d", got, want)
			}
			if r.catalog.live != 0 {
				t.Errorf("%d void chunks stay in the catalog", r.catalog.live)
			}
		})
	}
}
