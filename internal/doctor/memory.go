package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// usualShm is the size of /dev/shm that containers get when nothing is said.
const usualShm = 64 << 20

func size(bytes uint64) string { return config.Size(bytes >> 20 << 20).String() }

// field returns the first word behind a name in a file of lines "Name: value".
func field(root fs.FS, file, name string) (string, bool) {
	data, err := fs.ReadFile(root, file)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(data)) {
		if rest, is := strings.CutPrefix(line, name); is {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0], true
			}
		}
	}
	return "", false
}

func kibibytes(root fs.FS, file, name string) (uint64, bool) {
	text, there := field(root, file, name)
	if !there {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 50)
	return n << 10, err == nil
}

// memory compares the store with the machine.
func memory(_ context.Context, s *System, c *Settings) []Finding {
	const where = "/proc/meminfo"
	total, thereTotal := kibibytes(s.Root, "proc/meminfo", "MemTotal:")
	free, thereFree := kibibytes(s.Root, "proc/meminfo", "MemAvailable:")
	switch {
	case !thereTotal || !thereFree:
		return found(Warning, "the machine's memory can't be read", where, "mount /proc")
	case c.StoreBytes > total:
		return found(Failure, fmt.Sprintf("a store of %s does not fit a machine of %s", size(c.StoreBytes), size(total)), where, "lower store_bytes")
	case c.StoreBytes > free:
		return found(Warning, fmt.Sprintf("a store of %s wants more than the %s that are available", size(c.StoreBytes), size(free)), where,
			"lower store_bytes, or free memory; a running store of ours counts as used already")
	}
	return ok(fmt.Sprintf("a store of %s fits the %s that are available", size(c.StoreBytes), size(free)), where)
}

// devShm is vLLM's business; the store's segment has no file there.
func devShm(_ context.Context, s *System, _ *Settings) []Finding {
	const where = "/dev/shm"
	total, free, err := s.SpaceBytes(where)
	switch {
	case err != nil:
		return found(Warning, fmt.Sprintf("can't be looked at: %v", err), where, "mount a tmpfs there: vLLM's processes talk through it")
	case total <= usualShm:
		return found(Warning, fmt.Sprintf("only %s large, which vLLM's own processes may fill; the store does not use it", size(total)), where,
			"start the container with --shm-size=1g, or an emptyDir of medium Memory there")
	case free < total/20:
		return found(Warning, fmt.Sprintf("%s of %s free", size(free), size(total)), where, "look for what dead processes left: ls -la /dev/shm")
	}
	return ok(fmt.Sprintf("%s of %s free; the store does not use it", size(free), size(total)), where)
}

// cgroupMemory compares the store with the limits of the control group, which
// shared memory counts against.
func cgroupMemory(_ context.Context, s *System, c *Settings) []Finding {
	group := ownGroup(s.Root)
	for dir := path.Join("sys/fs/cgroup", group); strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
		file := dir + "/memory.max"
		data, err := fs.ReadFile(s.Root, file)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 62)
		if err != nil { // "max"
			continue
		}
		what := fmt.Sprintf("the control group may use %s, a store of %s counts against it", size(limit), size(c.StoreBytes))
		do := "raise the container's or unit's memory limit, or lower store_bytes"
		switch {
		case c.StoreBytes > limit:
			return found(Failure, what+": the kernel would kill it", "/"+file, do)
		case c.StoreBytes > limit/2:
			return found(Warning, what+" and so does the engine when it shares the group", "/"+file, do)
		}
		return ok(what, "/"+file)
	}
	return ok("no memory limit", "/sys/fs/cgroup")
}

// ownGroup returns the process's control group, version 2, "" when not known.
func ownGroup(root fs.FS) string {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if group, is := strings.CutPrefix(strings.TrimSpace(line), "0::"); is {
			return path.Clean("/" + group)
		}
	}
	return ""
}

// cgroup says what a daemon that a shim starts would die with.
func cgroup(_ context.Context, s *System, _ *Settings) []Finding {
	const where, unit = "/proc/self/cgroup", "run mooncake-lookupd as a unit or container of its own, and share its runtime directory"
	group := ownGroup(s.Root)
	for _, mark := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := fs.Stat(s.Root, mark); err == nil {
			return found(Warning, "this is a container: a daemon that an engine starts here ends with it, and the cache is gone", "/"+mark, unit)
		}
	}
	for _, mark := range []string{"docker", "kubepods", "containerd", "libpod", "crio", "lxc"} {
		if strings.Contains(group, mark) {
			return found(Warning, "this is a container: a daemon that an engine starts here ends with it, and the cache is gone", where, unit)
		}
	}
	if strings.HasSuffix(group, ".service") {
		return found(Warning, "this is the service "+path.Base(group)+": a daemon that an engine starts in it ends when the service is stopped, and the cache is gone", where, unit)
	}
	if strings.HasSuffix(group, ".scope") {
		return found(Info, "a daemon that an engine starts here belongs to "+path.Base(group)+"; it may end at logout", where, "loginctl enable-linger, or "+unit)
	}
	return ok("a daemon that an engine starts outlives it", where)
}

func memlock(_ context.Context, s *System, c *Settings) []Finding {
	const where = "/proc/self/limits"
	text, there := field(s.Root, "proc/self/limits", "Max locked memory")
	if !there {
		return found(Info, "the limit of locked memory can't be read", where, "")
	}
	limit, err := strconv.ParseUint(text, 10, 64)
	if err == nil && limit < c.StoreBytes {
		return found(Info, fmt.Sprintf("%d bytes may be locked; a store of %s can't be pinned, which GPUs and RDMA want and CPU engines do not", limit, size(c.StoreBytes)), where,
			"LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1 for a container")
	}
	return ok("memory may be locked", where)
}

// hugepages looks at what shared memory is mapped with.
func hugepages(_ context.Context, s *System, _ *Settings) []Finding {
	const file = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	data, err := fs.ReadFile(s.Root, file)
	if err != nil {
		return ok("the kernel has no huge pages for shared memory", "/"+file)
	}
	_, rest, _ := strings.Cut(string(data), "[")
	mode, _, _ := strings.Cut(rest, "]")
	switch mode {
	case "never", "deny":
		return found(Info, "shared memory gets no huge pages ("+mode+"); copies of large blocks cost a few percent more", "/"+file, "echo advise > /"+file)
	}
	return ok("huge pages for shared memory: "+mode, "/"+file)
}
