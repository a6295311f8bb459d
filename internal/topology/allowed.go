package topology

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Allowance is what a process may use: affinity and control group (cpuset) taken
// together.
type Allowance struct {
	CPUs Set `json:"cpus"`
	// Nodes whose memory it may use.
	Nodes Set `json:"nodes"`
}

// Allowed reads what the process itself may use. A set is nil where procfs does
// not say.
func Allowed(root fs.FS) (Allowance, error) { return allowedIn(root, "proc/self/status") }

// AllowedOf is the same of another process.
func AllowedOf(root fs.FS, pid int) (Allowance, error) {
	return allowedIn(root, "proc/"+strconv.Itoa(pid)+"/status")
}

func allowedIn(root fs.FS, name string) (Allowance, error) {
	text, there, err := readText(root, name)
	if err != nil || !there {
		return Allowance{}, err
	}
	allowed, err := parseAllowance(text)
	if err != nil {
		return Allowance{}, fmt.Errorf("/%s: %w", name, err)
	}
	return allowed, nil
}

func parseAllowance(text string) (allowed Allowance, err error) {
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, "Cpus_allowed_list:"); is {
			if allowed.CPUs, err = ParseSet(rest); err != nil {
				return Allowance{}, fmt.Errorf("allowed CPUs: %w", err)
			}
		}
		if rest, is := strings.CutPrefix(line, "Mems_allowed_list:"); is {
			if allowed.Nodes, err = ParseSet(rest); err != nil {
				return Allowance{}, fmt.Errorf("allowed nodes: %w", err)
			}
		}
	}
	return allowed, nil
}
