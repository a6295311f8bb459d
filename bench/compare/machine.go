package compare

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// ThisMachine describes where we are, as far as /proc says.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), CPUModel: field("/proc/cpuinfo", "model name"), Load: "unknown"}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.MemoryGiB = kib >> 20
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(load), " ")
	}
	return m
}

// field is what follows the colon on a file's first line of that name.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
