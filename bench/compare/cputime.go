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
	"time"
)

// ticksPerSecond of /proc's CPU times: fixed for user space.
const ticksPerSecond = 100

// sessionTime is the CPU time of all processes of the given process sessions, of
// their children that have ended too.
func sessionTime(proc string, sessions []int) (time.Duration, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, fmt.Errorf("listing processes: %w", err)
	}
	var ticks int64
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, err := os.ReadFile(proc + "/" + entry.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || isGone(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reading a process's times: %w", err)
		}
		session, used, err := parseStat(line)
		if err != nil {
			return 0, fmt.Errorf("process %s: %w", entry.Name(), err)
		}
		if slices.Contains(sessions, session) {
			ticks += used
		}
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
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
