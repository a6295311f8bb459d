package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// machineOf has nodes of two cores and 64 MiB each, of which all but the last may
// be used.
func machineOf(nodes int) fstest.MapFS {
	root := fstest.MapFS{"proc/self/status": {Data: fmt.Appendf(nil, "Cpus_allowed_list:\t0-%d\nMems_allowed_list:\t0-%d\n", 2*nodes-1, nodes-2)}}
	for i := range nodes {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", i)
		root[dir+"cpulist"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d-%d\n", 2*i, 2*i+1)}
		root[dir+"meminfo"] = &fstest.MapFile{Data: fmt.Appendf(nil, "Node %d MemTotal: 65536 kB\nNode %d MemFree: 32768 kB\n", i, i)}
	}
	return root
}

func TestStoreNodes(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	rooms := storeNodes(machineOf(4), config.NUMAAuto, log)
	if want := []embedded.NodeRoom{{Node: 0, Bytes: 32 << 20}, {Node: 1, Bytes: 32 << 20}, {Node: 2, Bytes: 32 << 20}}; !slices.Equal(rooms, want) {
		t.Errorf("%+v, want %+v", rooms, want)
	}
	if said := text.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "node=3") || !strings.Contains(said, "cpuset") {
		t.Errorf("the log: %s", said)
	}
	if rooms := storeNodes(machineOf(4), config.NUMAOff, log); rooms != nil {
		t.Errorf("off: %+v", rooms)
	}
	if rooms := storeNodes(fstest.MapFS{}, config.NUMAAuto, log); len(rooms) != 0 {
		t.Errorf("without NUMA: %+v", rooms)
	}
	broken := machineOf(2)
	broken["sys/devices/system/node/node0/cpulist"] = &fstest.MapFile{Data: []byte("x\n")}
	if text.Reset(); storeNodes(broken, config.NUMAAuto, log) != nil || !strings.Contains(text.String(), "level=WARN") {
		t.Errorf("a machine that can't be read: %s", &text)
	}
	if rooms := storeNodes(machineOf(40), config.NUMAAuto, log); len(rooms) != embedded.MaxNodes {
		t.Errorf("%d nodes of 40", len(rooms))
	}
}

// TestNodeOfAnEngine: the engine's cores count, then the worker's own.
func TestNodeOfAnEngine(t *testing.T) {
	root := machineOf(4)
	root["proc/7/status"] = &fstest.MapFile{Data: []byte("Cpus_allowed_list:\t5\n")}
	root["proc/8/status"] = &fstest.MapFile{Data: []byte("Cpus_allowed_list:\t1-2\n")}
	for pid, want := range map[int]int{7: 2, 8: topology.Unknown, 9: topology.Unknown} {
		if got := nodeOf(root, pid); got != want {
			t.Errorf("process %d is next to node %d, want %d", pid, got, want)
		}
	}
	root["proc/self/status"] = &fstest.MapFile{Data: []byte("Cpus_allowed_list:\t2-3\n")}
	for pid, want := range map[int]int{7: 2, 8: 1, 9: 1} {
		if got := nodeOf(root, pid); got != want {
			t.Errorf("process %d is next to node %d, want %d, the worker's", pid, got, want)
		}
	}
}
