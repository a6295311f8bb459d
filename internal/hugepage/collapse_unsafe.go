package hugepage

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bytes is the size of a huge page, of x86-64 and of arm64 with small pages of 4 KiB.
const Bytes = 2 << 20

// Want asks for huge pages for what s has of whole ones, from when they are first
// touched. It is a wish, granted where transparent_hugepage/enabled is madvise or always, for
// memory that no other process has.
//
// REQUIRES: s is a mapping or what make returned.
func Want[T any](s []T) {
	if whole := wholePages(s); len(whole) > 0 {
		_ = unix.Madvise(whole, unix.MADV_HUGEPAGE)
	}
}

// Collapse puts what s has of whole huge pages on such, with its contents, shared
// memory too, whatever the kernel's settings but deny. Who touches a page of it
// meanwhile, in this process or another, waits for some milliseconds. What was not
// allocated is then.
//
// It fails with EINVAL on a kernel before 6.1 and on one that may not, and with ENOMEM,
// EAGAIN or EBUSY where no huge page is to be had: then all is as it was, or some of it is
// done.
//
// REQUIRES: as Want.
func Collapse[T any](s []T) error {
	whole := wholePages(s)
	if len(whole) == 0 {
		return nil
	}
	if err := unix.Madvise(whole, unix.MADV_COLLAPSE); err != nil {
		return fmt.Errorf("put %d bytes on huge pages: %w", len(whole), err)
	}
	return nil
}

// wholePages returns what s has of huge pages that are all its own.
func wholePages[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	start := unsafe.Pointer(unsafe.SliceData(s))
	bytes := uintptr(len(s)) * unsafe.Sizeof(s[0])
	skip := -uintptr(start) % Bytes
	if bytes < skip+Bytes {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(start, skip)), (bytes-skip)/Bytes*Bytes)
}
