package proc

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Only the work runs at another priority: not its caller, what it starts, or any
// goroutine that comes to run later.
func TestBackgroundLowersTheWorkAlone(t *testing.T) {
	nice := func() int {
		// Between the two calls another thread may take the goroutine up, and lower the first.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		kernel, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
		if err != nil {
			t.Error(err)
		}
		return 20 - kernel
	}
	before := nice()
	want := min(before+BackgroundNice, lowestNice)
	if want == before {
		t.Skip("the priority is the lowest already")
	}
	var background Background
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var inside, beside int
			background.Run(func() {
				inside = nice()
				started := make(chan struct{})
				go func() {
					defer close(started)
					beside = nice()
				}()
				<-started
			})
			if inside != want || beside != before {
				t.Errorf("the work ran at nice %d, want %d; what it started at %d, want %d", inside, want, beside, before)
			}
			if got := nice(); got != before {
				t.Errorf("the caller is at nice %d now, was %d", got, before)
			}
		})
	}
	all.Wait()
	// Held each on its own thread, these need every thread that there is.
	var together sync.WaitGroup
	together.Add(32)
	for range 32 {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			together.Done()
			together.Wait()
			if got := nice(); got != before {
				t.Errorf("a later goroutine runs at nice %d, want %d", got, before)
			}
		})
	}
	all.Wait()
}

// Background work takes no processor from other goroutines, however much of it
// there is, and leaves none behind.
func TestBackgroundBringsItsProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	var background Background
	var all, begun sync.WaitGroup
	release := make(chan struct{})
	const works = 5
	begun.Add(works)
	for range works {
		all.Go(func() {
			background.Run(func() {
				begun.Done()
				<-release
			})
		})
	}
	begun.Wait()
	if got := runtime.GOMAXPROCS(0); got != before+works {
		t.Errorf("%d processors beside %d works, want %d", got, works, before+works)
	}
	close(release)
	all.Wait()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors afterwards, want %d", got, before)
	}
}
