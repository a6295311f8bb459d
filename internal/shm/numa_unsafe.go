package shm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxNode bounds a NUMA node's number, as the kernel does.
const maxNode = 1023

// Bind asks for the pages of a range on a NUMA node: those that are allocated from
// now on, by whoever maps the file. It prefers the node and takes memory elsewhere
// when that one has none left: to insist would have the kernel kill processes for
// it.
//
// It fails with EPERM or ENOSYS where it is not allowed, as in many containers,
// and with EINVAL for a node that this process may not use.
func (s *Segment) Bind(offset, n uint64, node int) error {
	data := s.mapping.Data()
	size, page := uint64(len(data)), uint64(unix.Getpagesize())
	if offset > size || n > size-offset || n == 0 || offset%page != 0 {
		return fmt.Errorf("bind [%d, +%d): %w: the mapping has %d bytes", offset, n, ErrWrongSize, size)
	}
	if node < 0 || node > maxNode {
		return fmt.Errorf("bind to NUMA node %d: %w", node, unix.EINVAL)
	}
	var mask [(maxNode + 1) / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel reads one bit less than it is told.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&data[offset])), uintptr(n), unix.MPOL_PREFERRED,
		uintptr(unsafe.Pointer(&mask)), maxNode+2, 0)
	if errno != 0 {
		return fmt.Errorf("bind %d bytes to NUMA node %d: %w", n, node, errno)
	}
	return nil
}
