package shm

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Mapping is a mapped memory file.
type Mapping struct {
	data []byte
}

// Map maps a whole memory file for reading and writing after checking it. The
// descriptor stays the caller's and may be closed at once.
func Map(fd int, bytes uint64) (*Mapping, error) {
	if err := Check(fd, bytes); err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	if bytes > math.MaxInt {
		return nil, fmt.Errorf("map: %w: %d bytes", ErrWrongSize, bytes)
	}
	data, err := mapAligned(fd, int(bytes))
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", bytes, err)
	}
	// A forked child has no business with it.
	_ = unix.Madvise(data, unix.MADV_DONTFORK) // a wish
	return &Mapping{data: data}, nil
}

// Data returns the mapped bytes.
func (m *Mapping) Data() []byte { return m.data }

// Close unmaps.
//
// REQUIRES: nobody uses Data's bytes any more.
func (m *Mapping) Close() error {
	data := m.data
	m.data = nil
	if data == nil {
		return nil
	}
	if err := unmap(data); err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}
