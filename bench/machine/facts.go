package machine

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Facts say where a run was.
type Facts struct {
	CPUs     int    `json:"cpus"`
	CPUModel string `json:"cpu_model"`
	// Virtual: under a hypervisor, whose other guests no figure here shows.
	Virtual   bool   `json:"virtual,omitempty"`
	MemoryGiB int    `json:"memory_gib"`
	Kernel    string `json:"kernel,omitempty"`
	System    string `json:"system,omitempty"`
	// Load is the load average of a minute at the begin: other work shows in figures.
	Load string `json:"load"`
}

// unknown is what could not be found out.
const unknown = "unknown"

// This describes where we are, as far as /proc says.
func This() Facts {
	f := Facts{CPUs: runtime.NumCPU(), CPUModel: field("/proc/cpuinfo", "model name", ":"), Load: Load(), Kernel: unknown, System: strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`)}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal", ":"), " kB")); err == nil {
		f.MemoryGiB = kib >> 20
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		f.Kernel = strings.TrimSpace(string(release))
	}
	for _, flag := range []string{"flags", "Features"} {
		f.Virtual = f.Virtual || strings.Contains(" "+field("/proc/cpuinfo", flag, ":")+" ", " hypervisor ")
	}
	return f
}

// Load is the load average of the last minute.
func Load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return unknown
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// field is what follows on a file's first line of that name.
func field(path, name, separator string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return unknown
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}
