// Package proc tells processes apart: a pid is reused, a pid with its start time
// is not.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// ErrGone reports a process that does not exist, or is a zombie without threads:
// its memory is unmapped and it can do nothing any more.
var ErrGone = errors.New("process is gone")

// StartTime returns when a process started, in clock ticks since boot
// (proc(5), /proc/pid/stat, field 22).
func StartTime(pid int) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return 0, fmt.Errorf("start time of pid %d: %w", pid, err)
	}
	return parseStat(pid, stat)
}

func parseStat(pid int, stat []byte) (uint64, error) {
	// The command's name, in parentheses, may hold anything, blanks and
	// parentheses too.
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("start time of pid %d: malformed stat", pid)
	}
	// A zombie is a process whose first thread has ended; the others may run on,
	// as they do for a moment after a kill. The last one has unmapped the memory
	// before it is not counted any more.
	threads, err := strconv.Atoi(string(fields[17]))
	if err != nil {
		return 0, fmt.Errorf("threads of pid %d: %w", pid, err)
	}
	if state := fields[0][0]; (state == 'Z' || state == 'X') && threads <= 1 {
		return 0, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time of pid %d: %w", pid, err)
	}
	return start, nil
}

// Alive tells whether the process that had this pid and start time still runs.
// When that can't be found out it is taken to run.
func Alive(pid uint32, start uint64) bool {
	now, err := StartTime(int(pid))
	if err != nil {
		return !errors.Is(err, ErrGone)
	}
	return now == start
}
