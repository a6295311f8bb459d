package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootClock returns the time since the machine started, suspended time included,
// as if it had started in 1970. Nobody can set it, and it is the same for all
// processes: what one has written another can count on with, for as long as
// anything in memory lasts.
func BootClock() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("BUG: the kernel has no boot clock: " + err.Error())
	}
	return time.Unix(t.Unix())
}
