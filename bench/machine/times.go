package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond of /proc's CPU times: fixed for user space.
const ticksPerSecond = 100

// Tick is the unit of /proc's CPU times.
const Tick = time.Second / ticksPerSecond

// Busy is the CPU time that everything on this machine has used, but this process.
func Busy() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the machine's times: %w", err)
	}
	busy, err := parseBusy(stat)
	if err != nil {
		return 0, err
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0, fmt.Errorf("reading this process's times: %w", err)
	}
	return busy - time.Duration(own.Utime.Nano()+own.Stime.Nano()), nil
}

// parseBusy reads the first line of /proc/stat: user, nice, system, idle, iowait,
// irq and softirq time.
func parseBusy(stat []byte) (time.Duration, error) {
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("malformed machine's times %.60q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("malformed machine's times: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * Tick, nil
}
