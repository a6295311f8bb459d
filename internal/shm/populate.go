package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Populate makes a range of the mapping ready to be written: its pages are
// allocated, zeroed if they were not there yet, and entered in the page table.
// What others have written there stays. It takes the time of that, so that who
// copies later does not.
//
// It fails on a kernel before 5.14 and where there is no memory; then the pages
// come with their first use, as without it.
func (m *Mapping) Populate(offset, n uint64) error {
	size := uint64(len(m.data))
	if offset > size || n > size-offset {
		return fmt.Errorf("populate [%d, +%d): %w: the mapping has %d bytes", offset, n, ErrWrongSize, size)
	}
	if n == 0 {
		return nil
	}
	page := uint64(unix.Getpagesize())
	from := offset / page * page
	if err := retry(func() error { return unix.Madvise(m.data[from:offset+n], unix.MADV_POPULATE_WRITE) }); err != nil {
		return fmt.Errorf("populate %d bytes: %w", n, err)
	}
	return nil
}

// Populate is the mapping's.
func (s *Segment) Populate(offset, n uint64) error { return s.mapping.Populate(offset, n) }
