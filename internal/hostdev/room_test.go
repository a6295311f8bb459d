package hostdev

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestRoomIsTheTightestGroups(t *testing.T) {
	const none = uint64(math.MaxUint64)
	for name, c := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"no groups": {nil, none},
		"no limit":  {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n"}, none},
		"own limit": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "100\n", "sys/fs/cgroup/a/memory.current": "30\n"}, 70},
		"the limit above is tighter": {map[string]string{
			"proc/self/cgroup":           "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "100\n", "sys/fs/cgroup/a/memory.current": "95\n",
			"sys/fs/cgroup/a/b/memory.max": "80\n", "sys/fs/cgroup/a/b/memory.current": "30\n",
		}, 5},
		"a container's root": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "1\n"}, 99},
		"more used than allowed": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "101\n",
		}, 0},
		"version 1, named as the host sees it": {map[string]string{
			"proc/self/cgroup":                            "4:memory:/docker/0123\n2:cpu:/docker/0123\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":  "100\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":  "40\n",
			"sys/fs/cgroup/memory/other/memory.max_usage": "1\n",
		}, 60},
		"garbage": {map[string]string{"proc/self/cgroup": "\n0:\n0::../../..\n", "sys/fs/cgroup/memory.max": "-1\n"}, none},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := roomIn(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
