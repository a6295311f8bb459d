package proc

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// BackgroundNice is the priority of work that nobody waits for: beside a process
// that wants all of a core it gets about a tenth. Lower would starve it, and what
// waits for it, for seconds.
const BackgroundNice = 10

// lowestNice is the kernel's.
const lowestNice = 19

// Background runs work that nobody waits for. The zero value works; a process has
// one.
type Background struct {
	// Refused, when not nil, is told once, with the first error, that the priority
	// could not be lowered: the work runs all the same.
	Refused func(error)
	refused sync.Once

	mu sync.Mutex // makes a change of the number of processors one step
}

// Run runs work on a thread of its own whose priority is lowered by
// BackgroundNice, and returns when work does. The caller keeps its priority; the
// thread ends with the work, as an unprivileged thread can't raise its priority
// again.
//
// The thread brings a processor of its own to those that Go shares out
// (GOMAXPROCS): it keeps the one it is on while the kernel gives the core to
// others, and goroutines of normal priority would wait for that.
func (b *Background) Run(work func()) {
	b.addProcessors(1)
	defer b.addProcessors(-1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		// The kernel answers 20 minus the nice value, so that no answer is negative.
		if kernel, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid()); err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), min(20-kernel+BackgroundNice, lowestNice))
			if err != nil && b.Refused != nil { // a sandbox; a lower priority needs no right
				b.refused.Do(func() { b.Refused(err) })
			}
		}
		work()
	}()
	<-done
}

func (b *Background) addProcessors(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}
