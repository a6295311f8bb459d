package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	// storeStep is what a default store size is rounded down to.
	storeStep = 64 << 20
	// minDefaultStore is the least that a default store size is.
	minDefaultStore = 256 << 20
	// MinStoreBytes is the smallest store that may be asked for.
	MinStoreBytes = 8 << 20
)

// DefaultStoreBytes is a quarter of the memory that the process may use: of the
// tightest memory limit of its control groups, or of the machine. root is the
// root file system.
func DefaultStoreBytes(root fs.FS) Size {
	available := MemoryLimit(root).Bytes
	if available == unlimited {
		return minDefaultStore // neither could be read
	}
	if available < 2*minDefaultStore {
		return Size(max(available/4/MinStoreBytes*MinStoreBytes, MinStoreBytes))
	}
	return Size(max(available/4/storeStep*storeStep, minDefaultStore))
}

// Limit is how much memory a process may use, and what says so.
type Limit struct {
	Bytes uint64
	// Where is the file that says so, empty for no limit.
	Where string
}

// MemoryLimit is the tightest of the machine's memory and the limits of the
// process's control groups. root is the root file system.
func MemoryLimit(root fs.FS) Limit {
	return tighter(Limit{memTotal(root), "/proc/meminfo"}, cgroupLimit(root))
}

// ErrNoRoom: a store is larger than the memory that its daemon may use.
var ErrNoRoom = errors.New("the store does not fit")

// CheckRoom refuses a store that can't have its memory. A control group's limit
// would otherwise show only when the kernel kills the daemon in the middle of
// its work.
func CheckRoom(root fs.FS, bytes uint64) error {
	limit := MemoryLimit(root)
	if limit.Bytes == unlimited || bytes <= limit.Bytes {
		return nil
	}
	do := "lower store_bytes"
	if limit.Where != "/proc/meminfo" {
		do += " or raise the limit of the container or unit"
	}
	return fmt.Errorf("%w: with its tables it needs %d MiB, and %s allows %d MiB; %s", ErrNoRoom, bytes>>20, limit.Where, limit.Bytes>>20, do)
}

func tighter(a, b Limit) Limit {
	if b.Bytes < a.Bytes {
		return b
	}
	return a
}

const unlimited = ^uint64(0)

// memTotal reads the machine's memory.
func memTotal(root fs.FS) uint64 {
	data, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return unlimited
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(fields[1], 10, 53); err == nil {
				return kib << 10
			}
		}
	}
	return unlimited
}

// cgroupLimit returns the tightest limit of the process's control groups and
// their ancestors, version 2 or 1. In a container the files of its own group
// stand at the mount's root, which is looked at in any case.
func cgroupLimit(root fs.FS) Limit {
	limit := tighter(readLimit(root, "sys/fs/cgroup/memory.max"), readLimit(root, "sys/fs/cgroup/memory/memory.limit_in_bytes"))
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(data)) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mount, file string
		switch {
		case parts[0] == "0" && parts[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case strings.Contains(","+parts[1]+",", ",memory,"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			limit = tighter(limit, readLimit(root, path.Join(mount, group, file)))
			if group == "/" {
				break
			}
		}
	}
	return limit
}

// readLimit reads one limit; version 1 writes none as a very large number.
func readLimit(root fs.FS, name string) Limit {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return Limit{Bytes: unlimited}
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || limit >= 1<<60 { // "max"
		return Limit{Bytes: unlimited}
	}
	return Limit{Bytes: limit, Where: "/" + name}
}
