package hostdev

import "unsafe"

// addressOf returns where mapped memory begins. It is not Go memory and does not
// move.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
