package shm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nodeAt returns the NUMA node of the page at an offset, which it brings into
// memory.
func (s *Segment) nodeAt(offset uint64) (int, error) {
	data := s.mapping.Data()
	node := int32(-1)
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0,
		uintptr(unsafe.Pointer(&data[offset])), unix.MPOL_F_NODE|unix.MPOL_F_ADDR, 0)
	if errno != 0 {
		return 0, fmt.Errorf("node at %d: %w", offset, errno)
	}
	return int(node), nil
}

// preferredNode returns the node that the range around an offset is bound to.
// False: it is bound to none.
func (s *Segment) preferredNode(offset uint64) (node int, bound bool, err error) {
	data := s.mapping.Data()
	var mask [(maxNode + 1) / 64]uint64
	mode := int32(-1)
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&mask)), maxNode+2,
		uintptr(unsafe.Pointer(&data[offset])), unix.MPOL_F_ADDR, 0)
	if errno != 0 {
		return 0, false, fmt.Errorf("policy at %d: %w", offset, errno)
	}
	for node := range maxNode + 1 {
		if mode == unix.MPOL_PREFERRED && mask[node/64]>>(node%64)&1 == 1 {
			return node, true, nil
		}
	}
	return 0, false, nil
}
