package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
)

// mapAligned maps a file so that its huge pages, if it has any, are huge ones here too:
// its first byte is at a multiple of their size.
func mapAligned(fd, bytes int) ([]byte, error) {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	if bytes < hugepage.Bytes {
		at, err := unix.MmapPtr(fd, 0, nil, uintptr(bytes), prot, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return unsafe.Slice((*byte)(at), bytes), nil
	}
	// Address space for it and what may have to be skipped, of which the rest is given back.
	room := uintptr(bytes) + hugepage.Bytes
	at, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	from := unsafe.Add(at, -uintptr(at)%hugepage.Bytes)
	mapped, err := unix.MmapPtr(fd, 0, from, uintptr(bytes), prot, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(at, room)
		return nil, err
	}
	if before := uintptr(from) - uintptr(at); before > 0 {
		_ = unix.MunmapPtr(at, before)
	}
	page := uintptr(unix.Getpagesize())
	end := (uintptr(bytes) + page - 1) / page * page
	if behind := room - (uintptr(from) - uintptr(at)) - end; behind > 0 {
		_ = unix.MunmapPtr(unsafe.Add(from, end), behind)
	}
	return unsafe.Slice((*byte)(mapped), bytes), nil
}

func unmap(data []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(data)), uintptr(len(data)))
}
