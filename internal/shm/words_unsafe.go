package shm

import (
	"sync/atomic"
	"unsafe"
)

// Words returns memory as 64-bit words in the machine's byte order, without a
// rest that is shorter than one. The words are the same memory: they live as
// long as b's, and what is read through them while it is written must be
// written through them too.
//
// REQUIRES: b begins at a multiple of 8, as mappings and large allocations do.
func Words(b []byte) []atomic.Uint64 {
	start := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(start)%8 != 0 {
		panic("BUG: memory that is not aligned has no words")
	}
	return unsafe.Slice((*atomic.Uint64)(start), len(b)/8)
}
