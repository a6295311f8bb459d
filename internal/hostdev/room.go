package hostdev

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// room returns how much more memory the process may use before the kernel kills
// it: what the tightest of its control groups has left. A page counts against
// the group that touches it first, whoever's memory it is.
func room() uint64 { return roomIn(os.DirFS("/")) }

func roomIn(root fs.FS) uint64 {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return math.MaxUint64 // there are no groups
	}
	left := uint64(math.MaxUint64)
	for line := range strings.Lines(string(data)) {
		// hierarchy:controllers:group
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[0] == "0":
			left = min(left, roomBelow(root, "sys/fs/cgroup", fields[2], "memory.max", "memory.current"))
		case fields[1] == "memory":
			left = min(left, roomBelow(root, "sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes", "memory.usage_in_bytes"))
		}
	}
	return left
}

// roomBelow looks at a group and all above it. In a container the group may be
// named as the host sees it; what is above is there all the same.
func roomBelow(root fs.FS, mount, group, limitFile, usageFile string) uint64 {
	left := uint64(math.MaxUint64)
	for dir := path.Join(mount, path.Clean("/"+group)); ; dir = path.Dir(dir) {
		limit, limited := number(root, path.Join(dir, limitFile))
		used, known := number(root, path.Join(dir, usageFile))
		if limited && known {
			left = min(left, limit-min(used, limit))
		}
		if dir == mount {
			return left
		}
	}
}

// number reads a file of one number; "max" is none.
func number(root fs.FS, file string) (n uint64, ok bool) {
	data, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
