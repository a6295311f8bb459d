package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// CalmMonitor has the thread with which Go's runtime watches the others (sysmon)
// wait for its turn instead of preempting whoever runs on its core. While anything
// runs it looks every 70 us at first, for some milliseconds, and a thread of
// lower priority on that core is put aside each time: copies of stores took a
// third longer beside it. An error means that it goes on as it does.
func CalmMonitor() error {
	tid, err := monitorThread()
	if err != nil {
		return err
	}
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return fmt.Errorf("thread %d: %w", tid, err)
	}
	attr.Policy = unix.SCHED_BATCH
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("thread %d: %w", tid, err)
	}
	return nil
}

// monitorThread returns the number of the monitor: runtime.main starts it before
// anything else. Were it another thread, that one would be none the worse.
func monitorThread() (int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	type thread struct {
		tid   int
		start uint64
	}
	var threads []thread
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil || tid == os.Getpid() {
			continue
		}
		if start, err := StartTime(tid); err == nil { // else it has ended
			threads = append(threads, thread{tid, start})
		}
	}
	if len(threads) == 0 {
		return 0, errors.New("no thread beside the first")
	}
	return slices.MinFunc(threads, func(a, b thread) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.tid, b.tid))
	}).tid, nil
}
