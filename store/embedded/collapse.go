package embedded

import "github.com/mooncake-sidecar/sidecar/internal/hugepage"

// Collapser is a Memory that can be on huge pages. Records are read at random; and
// every process that maps slabs meets each of their pages for a first time, which for
// small ones takes longer than to read them.
type Collapser interface {
	// Collapse puts the whole huge pages of [offset, offset+n) on such, if it can.
	// They are prepared.
	Collapse(offset, n uint64) error
}

// collapse asks for huge pages for the prepared range [from, to) of the file.
func (m *Master) collapse(from, to uint64) {
	c, can := m.mem.(Collapser)
	if !can || !m.opts.HugePages {
		return
	}
	from = (from + hugepage.Bytes - 1) / hugepage.Bytes * hugepage.Bytes
	if to = to / hugepage.Bytes * hugepage.Bytes; from < to {
		if err := c.Collapse(from, to-from); err != nil {
			m.opts.Log.Debug("memory stays on small pages", "error", err)
		}
	}
}

// collapseRecords does so for the record table, as far as it has come since it ended at
// from. What is before the table is prepared, too.
func (m *Master) collapseRecords(from uint64) {
	m.collapse(from/hugepage.Bytes*hugepage.Bytes, m.seg.recordsEnd())
}
