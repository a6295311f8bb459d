package topology

import (
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// memoryRoot is a machine whose nodes have cores and MiB of memory as listed.
func memoryRoot(allowed string, cpus []string, mib []int) fstest.MapFS {
	root := fstest.MapFS{"proc/self/status": file("Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t" + allowed + "\n")}
	for i := range cpus {
		dir := nodeDir + "/node" + strconv.Itoa(i)
		root[dir+"/cpulist"] = file(cpus[i] + "\n")
		line := "Node " + strconv.Itoa(i)
		root[dir+"/meminfo"] = file(line + " MemTotal: " + strconv.Itoa(mib[i]<<10) + " kB\n" + line + " MemFree: " + strconv.Itoa(mib[i]<<8) + " kB\n" +
			line + " FilePages: " + strconv.Itoa(mib[i]<<9) + " kB\n" + line + " Shmem: 0 kB\n")
	}
	return root
}

// TestMemoryNodes: node 1 has no memory, node 2 is not allowed, node 3 is a GPU's.
func TestMemoryNodes(t *testing.T) {
	root := memoryRoot("0-1,3-4", []string{"0-1", "2-3", "4-5", "", "6-7"}, []int{64, 0, 64, 96, 32})
	nodes, left, err := MemoryNodes(root)
	if err != nil || len(nodes) != 2 || nodes[0].ID != 0 || nodes[1].ID != 4 {
		t.Fatalf("%+v, %v", nodes, err)
	}
	if got := nodes[0].RoomBytes(); got != 48<<20 {
		t.Errorf("room for %d bytes", got)
	}
	for i, want := range []struct {
		node int
		why  string
	}{{1, "no memory"}, {2, "cpuset"}, {3, "GPU"}} {
		if len(left) != 3 || left[i].Node != want.node || !strings.Contains(left[i].Why, want.why) {
			t.Fatalf("left out: %+v", left)
		}
	}
	if nodes, left, err := MemoryNodes(fstest.MapFS{}); len(nodes)+len(left) != 0 || err != nil {
		t.Errorf("a machine without NUMA: %v, %v, %v", nodes, left, err)
	}
	root["proc/self/status"] = file("Mems_allowed_list:\tx\n")
	if _, _, err := MemoryNodes(root); err == nil {
		t.Error("an allowance that can't be read is no error")
	}
}

func TestAllowedOf(t *testing.T) {
	root := memoryRoot("0", []string{"0-7"}, []int{64})
	root["proc/12/status"] = file("Cpus_allowed_list:\t3\n")
	if a, err := AllowedOf(root, 12); err != nil || a.CPUs.String() != "3" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := AllowedOf(root, 13); err != nil || a.CPUs != nil {
		t.Errorf("a process that is gone: %+v, %v", a, err)
	}
}
