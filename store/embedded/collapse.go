package embedded

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
)

// Collapser is a Memory that can be on huge pages. Records are read at random; and
// every process that maps slabs meets each of their pages for a first time, which for
// small ones takes longer than to read them.
type Collapser interface {
	// Collapse puts the whole huge pages of [offset, offset+n) on such, if it can.
	// They are prepared.
	Collapse(offset, n uint64) error
}

const (
	// collapseStep is how much is collapsed between two looks at the clock.
	collapseStep = 16 * hugepage.Bytes
	// collapsePatience is how long a step may take, of memory that is in so many pieces
	// that the kernel moves others' about. The rest stays on small pages then.
	collapsePatience = 200 * time.Millisecond
)

// pageOf returns where the huge page begins that has a byte of the file.
func pageOf(at uint64) uint64 { return at / hugepage.Bytes * hugepage.Bytes }

// collapse asks for huge pages for the prepared range [from, to) of the file, and gives up
// where they are not to be had quickly.
func (m *Master) collapse(from, to uint64) {
	c, can := m.mem.(Collapser)
	if !can || !m.opts.HugePages {
		return
	}
	from, to = pageOf(from+hugepage.Bytes-1), pageOf(to)
	for ; from < to; from += collapseStep {
		begun := time.Now()
		if err := c.Collapse(from, min(to-from, collapseStep)); err != nil {
			m.opts.Log.Debug("memory stays on small pages", "error", err)
			return
		}
		if time.Since(begun) > collapsePatience {
			return
		}
	}
}

// collapseAdopted does so for the record table of an adopted segment, of which the master
// before may have left some on small pages: a step a call, false when nothing is left
// to do.
func (m *Master) collapseAdopted() bool {
	from, to := m.adopted.from, m.adopted.to
	m.adopted.from = min(from+collapseStep, to)
	m.collapse(from, m.adopted.from)
	return m.adopted.from < to
}

// recordsBy returns up to which record the table is made usable when ready are: to the end
// of a huge page where those are wanted, so that it is on one before it is read.
func (m *Master) recordsBy(ready uint32) uint32 {
	step := uint64(recordStep)
	if m.opts.HugePages {
		end := m.seg.recordsEnd()
		step = (pageOf(end) + hugepage.Bytes - end) / recordBytes
	}
	return ready + uint32(min(step, uint64(m.seg.Records-ready))) //nolint:gosec // at most Records
}
