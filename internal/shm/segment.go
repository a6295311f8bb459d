package shm

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Segment is a mapped memory file that keeps its descriptor, to be handed on,
// and whose pages are allocated a range at a time.
type Segment struct {
	fd      int
	mapping *Mapping
}

// NewSegment makes and maps a sealed memory file without allocating its pages.
// Nothing may touch a range before Prepare has allocated it.
func NewSegment(name string, bytes uint64) (*Segment, error) {
	if bytes == 0 || bytes > math.MaxInt64 {
		return nil, fmt.Errorf("create segment %s: %w: %d bytes", name, ErrWrongSize, bytes)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create segment %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create segment %s of %d bytes: %w", name, bytes, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create segment %s: seal: %w", name, err)
	}
	return OpenSegment(fd, bytes)
}

// OpenSegment maps a segment's file of exactly that many bytes. It takes the
// descriptor over, also when it fails.
func OpenSegment(fd int, bytes uint64) (*Segment, error) {
	mapping, err := Map(fd, bytes)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Segment{fd: fd, mapping: mapping}, nil
}

// Bytes returns the mapped bytes.
func (s *Segment) Bytes() []byte { return s.mapping.Data() }

// Words returns the mapped bytes as words, see Words.
func (s *Segment) Words() []atomic.Uint64 { return Words(s.mapping.Data()) }

// FD returns the file's descriptor, which stays the segment's.
func (s *Segment) FD() int { return s.fd }

// Prepare allocates the pages of a range for good, so that touching them can't
// fail later.
func (s *Segment) Prepare(offset, n uint64) error {
	if n == 0 {
		return nil
	}
	if err := retry(func() error { return unix.Fallocate(s.fd, 0, int64(offset), int64(n)) }); err != nil {
		return fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	return nil
}

// Close unmaps the segment and closes the descriptor. The memory is freed when
// nobody else has it.
//
// REQUIRES: nobody uses the bytes any more.
func (s *Segment) Close() error {
	return errors.Join(s.mapping.Close(), unix.Close(s.fd))
}
