package compare

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond of /proc's CPU times: fixed for user space.
const ticksPerSecond = 100

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
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// sessionTime is the CPU time of all processes of the given process sessions, of
// their children that have ended too.
func sessionTime(proc string, sessions []int) (time.Duration, error) {
	var ticks int64
	err := eachProcess(proc, sessions, func(_ string, used int64) { ticks += used })
	return time.Duration(ticks) * (time.Second / ticksPerSecond), err
}

// sessionProcesses are the ids of all processes of the given process sessions.
func sessionProcesses(proc string, sessions []int) (pids []string, err error) {
	err = eachProcess(proc, sessions, func(pid string, _ int64) { pids = append(pids, pid) })
	return pids, err
}

// eachProcess calls do with every process of the given process sessions, and the
// ticks that it has used.
func eachProcess(proc string, sessions []int, do func(pid string, ticks int64)) error {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, err := os.ReadFile(proc + "/" + entry.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || isGone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading a process's times: %w", err)
		}
		session, used, err := parseStat(line)
		if err != nil {
			return fmt.Errorf("process %s: %w", entry.Name(), err)
		}
		if slices.Contains(sessions, session) {
			do(entry.Name(), used)
		}
	}
	return nil
}

// parseStat reads session and CPU ticks of a line of /proc/PID/stat. The second
// field, a name in parentheses, may contain anything.
func parseStat(line []byte) (session int, ticks int64, err error) {
	end := bytes.LastIndexByte(line, ')')
	fields := strings.Fields(string(line[end+1:]))
	// From state on: session is the 4th; user, system, and both of ended children the 12th to 15th.
	if end < 0 || len(fields) < 15 {
		return 0, 0, fmt.Errorf("malformed times %.60q", line)
	}
	if session, err = strconv.Atoi(fields[3]); err != nil {
		return 0, 0, fmt.Errorf("malformed session: %w", err)
	}
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("malformed CPU time: %w", err)
		}
		ticks += n
	}
	return session, ticks, nil
}
