package config

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestCheckRoom(t *testing.T) {
	const gib = 1 << 30
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	machine := text("MemTotal:       16777216 kB\n") // 16 GiB
	group := fstest.MapFS{
		"proc/meminfo": machine, "proc/self/cgroup": text("0::/a.slice/b.service\n"),
		"sys/fs/cgroup/a.slice/b.service/memory.max": text("max\n"), "sys/fs/cgroup/a.slice/memory.max": text("8589934592\n"),
	}
	v1 := fstest.MapFS{
		"proc/meminfo": machine, "proc/self/cgroup": text("6:hugetlb,memory:/x\n"),
		"sys/fs/cgroup/memory/x/memory.limit_in_bytes": text("4294967296\n"),
	}
	for name, c := range map[string]struct {
		files fstest.MapFS
		bytes uint64
		want  []string // in the error; none for room
	}{
		"room":             {group, 8 * gib, nil},
		"nothing readable": {fstest.MapFS{}, 1 << 50, nil},
		"machine":          {fstest.MapFS{"proc/meminfo": machine}, 17 * gib, []string{"17408 MiB", "/proc/meminfo", "16384 MiB", "lower store_bytes"}},
		"group":            {group, 9 * gib, []string{"9216 MiB", "/sys/fs/cgroup/a.slice/memory.max", "8192 MiB", "raise the limit"}},
		"v1":               {v1, 5 * gib, []string{"/sys/fs/cgroup/memory/x/memory.limit_in_bytes"}},
	} {
		err := CheckRoom(c.files, c.bytes)
		if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, ErrNoRoom) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
}
