package hostdev

import (
	"sync/atomic"
	"unsafe"
)

// viewOf returns words as bytes, for a reader that is not the race detector's.
func viewOf(words []atomic.Uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}
