package shm

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
)

// Collapse puts the whole huge pages of a range on such; what is in them stays. See
// hugepage.Collapse for when it fails.
func (s *Segment) Collapse(offset, n uint64) error {
	data := s.mapping.Data()
	if size := uint64(len(data)); offset > size || n > size-offset {
		return fmt.Errorf("collapse [%d, +%d): %w: the mapping has %d bytes", offset, n, ErrWrongSize, size)
	}
	return hugepage.Collapse(data[offset : offset+n])
}
