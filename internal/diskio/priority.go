package diskio

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// The kernel's I/O priorities: a class above ioprioShift, a level from 0 to 7 below.
const (
	ioprioProcess    = 1 // the caller's thread, named by 0
	ioprioShift      = 13
	ioprioBestEffort = 2
	// writePriority is the lowest of those that are served in any case. In the idle
	// class writes would wait for as long as others read, and with them the memory
	// that they are of.
	writePriority = ioprioBestEffort<<ioprioShift | 7
)

// behindReads makes a call whose I/O goes behind that of others, this process'
// reads among it: a request waits for a read, nobody waits for a write. It matters
// where the disk's scheduler knows priorities (bfq, mq-deadline), and is a wish: a
// kernel or a sandbox that refuses it has the call made as any other.
func behindReads(call func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if before, ok := ioPriority(); ok && setIOPriority(writePriority) {
		defer setIOPriority(before)
	}
	call()
}

// ioPriority returns this thread's.
func ioPriority() (priority int, ok bool) {
	is, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioProcess, 0, 0)
	return int(is), errno == 0
}

func setIOPriority(to int) (ok bool) {
	_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioProcess, 0, uintptr(to))
	return errno == 0
}
