package embedded

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
)

// collapsing notes what huge pages are asked for.
type collapsing struct {
	heapMemory
	t        *testing.T
	prepared []bool         // by small page
	asked    map[uint64]int // by huge page
	err      error
}

func (c *collapsing) Prepare(offset, n uint64) error {
	for at := offset / pageBytes; at*pageBytes < offset+n; at++ {
		c.prepared[at] = true
	}
	return nil
}

func (c *collapsing) Collapse(offset, n uint64) error {
	if offset%hugepage.Bytes != 0 || n%hugepage.Bytes != 0 || n == 0 || offset+n > uint64(len(c.heapMemory)) {
		c.t.Errorf("huge pages for [%d, +%d)", offset, n)
	}
	for at := offset / pageBytes; at*pageBytes < offset+n; at++ {
		if !c.prepared[at] {
			c.t.Fatalf("page %d is not allocated and on a huge page", at)
		}
	}
	for at := offset / hugepage.Bytes; at < (offset+n)/hugepage.Bytes; at++ {
		c.asked[at]++
	}
	return c.err
}

// TestHugePages: all slabs and all records that are usable are asked for on huge
// pages, each once in a store's life, and none when it is told not to.
func TestHugePages(t *testing.T) {
	for _, on := range []bool{true, false} {
		w := newWorld(t, 2<<20)
		layout, err := NewLayout([16]byte{1}, 2<<30)
		if err != nil {
			t.Fatal(err)
		}
		opts := w.options()
		opts.HugePages = on
		memory := &collapsing{heapMemory: make(heapMemory, layout.FileBytes), t: t, prepared: make([]bool, layout.FileBytes/pageBytes+1), asked: map[uint64]int{}}
		m, err := Create(memory, layout, opts)
		if err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			if more, err = m.PrepareNext(); err != nil {
				t.Fatal(err)
			}
		}
		for fresh := true; fresh; {
			m.mu.Lock()
			_, fresh = m.freshRecordLocked()
			m.mu.Unlock()
		}
		if !on {
			if len(memory.asked) != 0 {
				t.Errorf("%d huge pages were asked for and not wanted", len(memory.asked))
			}
			continue
		}
		first, last := layout.recordsAt/hugepage.Bytes, (layout.recordsAt+uint64(layout.Records)*recordBytes)/hugepage.Bytes
		if last-first < 2 {
			t.Fatalf("the record table [%d, %d) has too few huge pages to tell", first, last)
		}
		for at := range layout.FileBytes / hugepage.Bytes {
			wanted := 0
			if at >= first && at < last || at*hugepage.Bytes >= layout.DataOffset {
				wanted = 1
			}
			if memory.asked[at] != wanted {
				t.Errorf("huge page %d was asked for %d times, want %d", at, memory.asked[at], wanted)
			}
		}

		// A master that takes over asks for the record table again, behind all slabs.
		clear(memory.asked)
		if m, _, err = Adopt(memory, opts); err != nil {
			t.Fatal(err)
		}
		if len(memory.asked) != 0 {
			t.Error("it serves later for huge pages")
		}
		for more := true; more; {
			if more, err = m.PrepareNext(); err != nil {
				t.Fatal(err)
			}
		}
		for at := first; at < last; at++ {
			if memory.asked[at] != 1 {
				t.Errorf("huge page %d was asked for %d times after the adoption, want once", at, memory.asked[at])
			}
		}
		if len(memory.asked) != int(last-first) {
			t.Errorf("%d huge pages were asked for after the adoption, want %d", len(memory.asked), last-first)
		}
	}
}
