package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrRuntimeDir: the runtime directory is not ours alone, so that what listens
// in it can't be trusted.
var ErrRuntimeDir = errors.New("unsafe runtime directory")

// dirName is the runtime directory's name below $XDG_RUNTIME_DIR.
const dirName = "mooncake-sidecar"

// Names of the sockets in the runtime directory.
const (
	// LookupdSocket takes the sessions of mooncake-lookupd.
	LookupdSocket = "lookupd.sock"
	// EventsSocket and EventsReplaySocket are those of EventsLocal.
	EventsSocket       = "kv-events.sock"
	EventsReplaySocket = "kv-events-replay.sock"
	// StoreSocket takes the gRPC calls of the store.
	StoreSocket = "store.sock"
	// CallsSocket takes the same calls from workers, over internal/unary.
	CallsSocket = "calls.sock"
	// RemovalsFile has what is to be removed from a Mooncake cluster yet. It is there
	// while anything is.
	RemovalsFile = "cluster-removals"
)

// WorkerSocket names the session socket of the worker of a device.
func WorkerSocket(device string) string { return "worker-" + device + ".sock" }

// ConductorSocket stands for the conductor at a port where AdminSocket asks for a name.
func ConductorSocket(port string) string { return "conductor-" + port + ".sock" }

// AdminSocket names the socket on which a daemon answers operators over HTTP;
// session is its session socket's name. WorkerSocketPattern must not match it.
func AdminSocket(session string) string { return "admin-" + session }

// WorkerSocketPattern matches the names that WorkerSocket makes.
const WorkerSocketPattern = "worker-*.sock"

// DefaultRuntimeDir is where the sockets are when nothing else is said.
// MOONCAKE_SIDECAR_RUNTIME_DIR was looked at before, as the environment of
// runtime_dir. env looks up an environment variable; nil is os.LookupEnv.
func DefaultRuntimeDir(env func(string) (string, bool), uid int) string {
	if env == nil {
		env = os.LookupEnv
	}
	if dir, _ := env("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, dirName)
	}
	return "/tmp/" + dirName + "-" + strconv.Itoa(uid)
}

// EnsureRuntimeDir makes the directory if it is missing and checks that nobody
// else can put anything there. A group may be let in: each socket has its own
// mode, and asks who comes.
func EnsureRuntimeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("runtime directory: %w", err)
	}
	return CheckRuntimeDir(dir)
}

// CheckRuntimeDir reports a directory that others may enter or the group may
// write to.
func CheckRuntimeDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", ErrRuntimeDir, dir)
	case !ok:
		return fmt.Errorf("%w: %s: its owner is not known", ErrRuntimeDir, dir)
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d, not to %d; choose another with --runtime-dir", ErrRuntimeDir, dir, stat.Uid, os.Geteuid())
	case info.Mode().Perm()&0o027 != 0:
		return fmt.Errorf("%w: %s has mode %04o, others may enter, or the group may write; chmod 0700 it (0750 for --group-access)", ErrRuntimeDir, dir, info.Mode().Perm())
	}
	return nil
}
