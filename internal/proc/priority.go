package proc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// BackgroundNice is the priority of work that nobody waits for: beside a process
// that wants all of a core it gets about a tenth. Lower would starve it, and what
// waits for it, for seconds.
const BackgroundNice = 10

// lowestNice is the kernel's.
const lowestNice = 19

// RunInBackground runs work on a thread of its own whose priority is lowered by
// BackgroundNice, and returns when work does. The caller keeps its priority; the
// thread ends with the work, as an unprivileged thread can't raise its priority
// again.
func RunInBackground(work func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		// The kernel answers 20 minus the nice value, so that no answer is negative.
		if kernel, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid()); err == nil {
			// A lower priority is a wish.
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), min(20-kernel+BackgroundNice, lowestNice))
		}
		work()
	}()
	<-done
}
