package proc

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Only the thread that does the work gets another priority, and it is gone
// afterwards: no other goroutine may come to run on it.
func TestRunInBackgroundLowersItsThreadAlone(t *testing.T) {
	nice := func() int {
		kernel, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
		if err != nil {
			t.Error(err)
		}
		return 20 - kernel
	}
	before := nice()
	var inside, thread int
	var all sync.WaitGroup
	all.Go(func() {
		RunInBackground(func() { inside, thread = nice(), unix.Gettid() })
	})
	all.Wait()
	if want := min(before+BackgroundNice, lowestNice); inside != want {
		t.Errorf("the work ran at nice %d, want %d", inside, want)
	}
	for range 100 {
		all.Go(func() {
			if nice() != before && unix.Gettid() != thread {
				t.Error("another thread has another priority")
			}
		})
	}
	all.Wait()
	if got := nice(); got != before {
		t.Errorf("the caller's thread is at nice %d now, was %d", got, before)
	}
}
