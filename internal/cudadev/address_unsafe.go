package cudadev

import "unsafe"

// addressOf returns where b begins: in mapped memory, which does not move.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
