package machine

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

// Process is a line of /proc/PID/stat.
type Process struct {
	PID, Parent, Session int
	// Ended: it waits for its parent to take note.
	Ended bool
	// Used is its CPU time and that of its children that have ended.
	Used time.Duration
}

// Processes lists those that run, from a folder like /proc. One that ends meanwhile
// is left out.
func Processes(proc string) ([]Process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(proc + "/" + entry.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // gone, before or while it was read
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading a process's times: %w", err)
		}
		p, err := parseStat(line)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		p.PID = pid
		all = append(all, p)
	}
	return all, nil
}

// InSessions leaves the processes of the given process sessions.
func InSessions(all []Process, sessions []int) []Process {
	return slices.DeleteFunc(slices.Clone(all), func(p Process) bool { return !slices.Contains(sessions, p.Session) })
}

// Below leaves the descendants of a process.
func Below(all []Process, pid int) []Process {
	children := map[int][]Process{}
	for _, p := range all {
		children[p.Parent] = append(children[p.Parent], p)
	}
	var below []Process
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			below, next = append(below, p), append(next, p.PID)
		}
	}
	return below
}

// Used sums up CPU times.
func Used(all []Process) time.Duration {
	var sum time.Duration
	for _, p := range all {
		sum += p.Used
	}
	return sum
}

// parseStat reads what we need of a line of /proc/PID/stat. The second field, a name
// in parentheses, may contain anything.
func parseStat(line []byte) (Process, error) {
	end := bytes.LastIndexByte(line, ')')
	fields := strings.Fields(string(line[end+1:]))
	// From state on: the parent is the 2nd, the session the 4th; user, system, and both of
	// ended children the 12th to 15th.
	if end < 0 || len(fields) < 15 {
		return Process{}, fmt.Errorf("malformed times %.60q", line)
	}
	p := Process{Ended: fields[0] == "Z" || fields[0] == "X"}
	var err error
	if p.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return Process{}, fmt.Errorf("malformed parent: %w", err)
	}
	if p.Session, err = strconv.Atoi(fields[3]); err != nil {
		return Process{}, fmt.Errorf("malformed session: %w", err)
	}
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return Process{}, fmt.Errorf("malformed CPU time: %w", err)
		}
		p.Used += time.Duration(n) * Tick
	}
	return p, nil
}
