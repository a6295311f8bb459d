package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	// maxSocketPath is the kernel's limit, without the closing zero.
	maxSocketPath = 107
	// longestSocket is the longest name of ours in the runtime directory.
	longestSocket = len("/admin-worker-cuda-9999.sock")
	// systemDir is where engines take daemons of another user for the system's.
	systemDir = "/run/mooncake-sidecar"
)

func runtimeDir(_ context.Context, s *System, c *Settings) []Finding {
	where := c.RuntimeDir
	owner, err := s.Stat(where)
	long := len(where)+longestSocket > maxSocketPath
	switch {
	case long:
		return found(Failure, fmt.Sprintf("its name has %d characters; sockets in it get names that the kernel refuses", len(where)), where,
			fmt.Sprintf("choose a runtime_dir of at most %d characters", maxSocketPath-longestSocket))
	case errors.Is(err, fs.ErrNotExist):
		return ok("not there yet; a daemon makes it", where)
	case err != nil:
		return found(Failure, fmt.Sprintf("can't be looked at: %v", err), where, "choose another runtime_dir")
	case !owner.Mode.IsDir():
		return found(Failure, "is no directory", where, "remove it, or choose another runtime_dir")
	case owner.Mode.Perm()&0o027 != 0:
		return found(Failure, fmt.Sprintf("has mode %04o: others may enter, or the group may write, so daemons and engines refuse it", owner.Mode.Perm()), where,
			"chmod 700 "+where+", or 750 for daemons with group_access")
	case owner.UID != s.UID && owner.Mode.Perm()&0o050 == 0o050 && (owner.UID == 0 || path.Clean(where) == systemDir):
		return found(Info, fmt.Sprintf("belongs to user %d, whose daemons with group_access can be used by members of its group", owner.UID), where, "add the engine's user to the group")
	case owner.UID != s.UID:
		return found(Failure, fmt.Sprintf("belongs to user %d, you are %d; daemons and engines refuse it", owner.UID, s.UID), where,
			"run engine and daemons as one user, or choose another runtime_dir")
	case owner.Mode.Perm()&0o050 != 0:
		return ok("is yours, and your group may use it", where)
	}
	return ok("is yours alone", where)
}

// sockets looks for what dead daemons left.
func sockets(_ context.Context, s *System, c *Settings) []Finding {
	entries, err := fs.ReadDir(s.Root, strings.TrimPrefix(path.Clean(c.RuntimeDir), "/"))
	if err != nil {
		return ok("none", c.RuntimeDir)
	}
	var all []Finding
	served := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".sock") {
			continue
		}
		socket := path.Join(c.RuntimeDir, e.Name())
		if s.Served(socket) {
			served++
			continue
		}
		all = append(all, found(Warning, "nobody serves this socket: its daemon has died", socket, "nothing, the next daemon replaces it; or rm "+socket)...)
	}
	if len(all) == 0 {
		return ok(fmt.Sprintf("%d are there, all are served", served), c.RuntimeDir)
	}
	return all
}

// daemons compares the versions of what runs.
func daemons(ctx context.Context, s *System, c *Settings) []Finding {
	running := s.Daemons(ctx)
	if len(running) == 0 {
		return found(Info, "no daemon runs; the first engine starts them unless autostart is off", c.RuntimeDir, "")
	}
	var all []Finding
	for _, d := range running {
		name := fmt.Sprintf("%s %s (pid %d)", d.Name, d.Version, d.PID)
		switch {
		case d.Version != c.Version:
			all = append(all, found(Warning, name+" runs, this program is "+c.Version, d.Socket, "end it with SIGTERM; the next one keeps the cache while a worker runs")...)
		case !d.Ready:
			all = append(all, found(Warning, name+" has no store", d.Socket, "see its /readyz, and whether mooncake-lookupd runs")...)
		default:
			all = append(all, ok(name+" runs", d.Socket)...)
		}
	}
	return all
}

func umask(_ context.Context, s *System, _ *Settings) []Finding {
	const where = "/proc/self/status"
	text, there := field(s.Root, "proc/self/status", "Umask:")
	mask, err := strconv.ParseUint(text, 8, 16)
	switch {
	case !there || err != nil:
		return found(Info, "can't be read", where, "")
	case mask&0o700 != 0:
		return found(Failure, fmt.Sprintf("umask %04o takes away your own permissions: sockets and logs can't be opened again", mask), where, "umask 022")
	}
	return ok(fmt.Sprintf("umask %04o; sockets and logs are yours alone in any case", mask), where)
}

// ptrace decides whether a worker can reach memory that is not shared.
func ptrace(_ context.Context, s *System, _ *Settings) []Finding {
	const file = "proc/sys/kernel/yama/ptrace_scope"
	data, err := fs.ReadFile(s.Root, file)
	if err != nil {
		return ok("not restricted", "/"+file)
	}
	switch scope := strings.TrimSpace(string(data)); scope {
	case "0":
		return ok("not restricted", "/"+file)
	default:
		return found(Info, "scope "+scope+": a worker can copy only from KV memory that the engine shares with it, which is the usual case", "/"+file,
			"sysctl kernel.yama.ptrace_scope=0 if an engine's registration fails with bad_descriptor")
	}
}
