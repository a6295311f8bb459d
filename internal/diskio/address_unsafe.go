package diskio

import "unsafe"

// addressOf returns where a slice begins in memory. INVARIANT: the number is used
// for its remainder only; heap memory does not move in Go.
func addressOf(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
