package hostdev

import "unsafe"

// addressOf returns where b begins: of mapped memory, which does not move, or to
// see how it is aligned, which does not change.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
