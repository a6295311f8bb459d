package indexer

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// residentBytes is the memory of a process that is in use and its own.
func residentBytes(pid int) (int64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("reading a process's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if kib, found := strings.CutPrefix(line, "RssAnon:"); found {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading a process's memory: %w", err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no RssAnon", pid) //nolint:err113 // an old kernel
}

// processTime is the processor time of a process, all of its threads together.
func processTime(pid int) (time.Duration, error) {
	// A process's clock has a number made of its own: see clock_getcpuclockid(3).
	const scheduled = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("reading a process's time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
