package doctor

import (
	"context"
	"io/fs"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// Severity says how bad a finding is.
type Severity string

// The severities, with the exit codes that the worst finding leads to: 0, 0, 1, 2.
const (
	OK      Severity = "ok"
	Info    Severity = "info"    // worth knowing; nothing is wrong
	Warning Severity = "warning" // it works, but not as it could, or not for long
	Failure Severity = "error"   // it does not work
)

// Finding is what a check found.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// What is the case, Where it was seen, and what to Do about it.
	What  string `json:"what"`
	Where string `json:"where,omitempty"`
	Do    string `json:"do,omitempty"`
}

// Owner is what a path is and whom it belongs to.
type Owner struct {
	UID  int
	Mode fs.FileMode
}

// Daemon is a daemon that answers in the runtime directory.
type Daemon struct {
	Name, Version, Socket string
	PID                   int
	Autostarted, Ready    bool
}

// Python is what an interpreter says of its packages.
type Python struct {
	// VLLM and Sidecar are the versions of vllm and mooncake_sidecar, "" for none.
	VLLM    string `json:"vllm"`
	Sidecar string `json:"sidecar"`
	// HashAlgorithm is vLLM's default for the prefix cache, "" when not found.
	HashAlgorithm string `json:"hash_algorithm"`
}

// System is the machine as the checks see it.
type System struct {
	// Root is the root file system.
	Root fs.FS
	// Env looks up a variable of the environment that engines will have.
	Env func(name string) (string, bool)
	UID int
	// Stat looks at a path itself, not at what a link leads to.
	Stat func(path string) (Owner, error)
	// SpaceBytes returns the size of the file system at a path.
	SpaceBytes func(path string) (total, free uint64, err error)
	// InMemory tells whether the file system at a path keeps its files in memory.
	InMemory func(path string) (bool, error)
	// Writable tells whether the process may make files in a directory.
	Writable func(path string) error
	// Served tells whether somebody listens on a Unix socket.
	Served func(path string) bool
	// Daemons lists the daemons that answer in the runtime directory.
	Daemons func(ctx context.Context) []Daemon
	// Python asks the interpreter of the engine. Nil: none was named.
	Python func(ctx context.Context) (Python, error)
	// Cluster tries the way to the Mooncake cluster. Nil: none is configured.
	Cluster func(ctx context.Context) Cluster
	// Machine reads GPUs, NUMA nodes and network adapters. Nil: they are not looked
	// for.
	Machine func() (*topology.Machine, error)
}

// Settings are what the daemons would be started with.
type Settings struct {
	RuntimeDir string
	StoreBytes uint64
	// NUMA is config.NUMAAuto or config.NUMAOff.
	NUMA string
	// DiskDir and DiskBytes are those of the disk tier; "" for none.
	DiskDir   string
	DiskBytes uint64
	// Version is our own.
	Version string
	// PythonPath is for messages.
	PythonPath string
	// HashAlgorithm is what the engine is told to use, "" for its default.
	HashAlgorithm string
}

// check looks at one thing. Its findings have no Check: Run names them.
type check struct {
	name string
	run  func(ctx context.Context, s *System, c *Settings) []Finding
}

// checks in the order of the report.
func checks() []check {
	return []check{
		{"memory", memory}, {"shm", devShm}, {"numa", numa}, {"cgroup_memory", cgroupMemory}, {"cgroup", cgroup}, {"memlock", memlock}, {"hugepages", hugepages}, {"disk", disk}, {"gpus", gpus}, {"nics", nics}, {"mooncake", mooncake},
		{"runtime_dir", runtimeDir}, {"sockets", sockets}, {"daemons", daemons}, {"umask", umask}, {"ptrace", ptrace},
		{"expandable_segments", expandableSegments}, {"vllm", vllm}, {"hash", hashSeed},
	}
}

// Run runs every check. A check that has nothing to say is reported as ok.
func Run(ctx context.Context, s *System, c *Settings) []Finding {
	var all []Finding
	for _, check := range checks() {
		found := check.run(ctx, s, c)
		for i := range found {
			found[i].Check = check.name
		}
		all = append(all, found...)
	}
	return all
}

// ExitCode is 0 without anything to mend, 1 with warnings, 2 with errors.
func ExitCode(findings []Finding) int {
	code := 0
	for _, f := range findings {
		switch f.Severity {
		case OK, Info:
		case Warning:
			code = max(code, 1)
		case Failure:
			code = 2
		}
	}
	return code
}

func ok(what, where string) []Finding { return []Finding{{Severity: OK, What: what, Where: where}} }

func found(severity Severity, what, where, do string) []Finding {
	return []Finding{{Severity: severity, What: what, Where: where, Do: do}}
}
