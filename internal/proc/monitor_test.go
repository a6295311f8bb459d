package proc

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slept returns how often a thread has gone to sleep by itself.
func slept(t *testing.T, tid int) (times int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", tid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
	if _, err := fmt.Sscan(rest, &times); !found || err != nil {
		t.Fatalf("%q: %v", status, err)
	}
	return times
}

// The thread that is calmed is the one that looks at the others again and again while
// something runs; and it goes on doing so.
func TestCalmMonitor(t *testing.T) {
	tid, err := monitorThread()
	if err != nil {
		t.Fatal(err)
	}
	before, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetAttr(tid, before, 0); err != nil {
			t.Error(err)
		}
	})
	if err := CalmMonitor(); err != nil {
		t.Fatal(err)
	}
	after, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if before.Policy != unix.SCHED_NORMAL || after.Policy != unix.SCHED_BATCH || after.Nice != before.Nice {
		t.Errorf("policy %d and nice %d before, %d and %d after", before.Policy, before.Nice, after.Policy, after.Nice)
	}
	// It sleeps 10 ms at most. What else does as often here is this thread alone.
	from := slept(t, tid)
	for begun := time.Now(); slept(t, tid) < from+20; {
		if time.Since(begun) > time.Minute {
			t.Fatalf("thread %d slept %d times in a minute: it is not the monitor", tid, slept(t, tid)-from)
		}
	}
}
