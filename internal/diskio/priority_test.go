package diskio

import (
	"runtime"
	"testing"
)

// A write goes behind reads, and its thread is as before afterwards.
func TestWritesGoBehindReads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, ok := ioPriority()
	if !ok || !setIOPriority(before) {
		t.Skip("threads have no I/O priority here")
	}
	inside := -1
	behindReads(func() { inside, _ = ioPriority() })
	if after, _ := ioPriority(); inside != writePriority || after != before {
		t.Errorf("the call had priority %#x, want %#x; afterwards it is %#x, was %#x", inside, writePriority, after, before)
	}
}
