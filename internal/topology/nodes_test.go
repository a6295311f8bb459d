package topology

import (
	"errors"
	"os"
	"slices"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestSetText(t *testing.T) {
	for text, want := range map[string]Set{
		"": nil, "\n": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, " 0-1,64-65\n": {0, 1, 64, 65}, "3,5": {3, 5},
	} {
		set, err := ParseSet(text)
		if err != nil || !slices.Equal(set, want) {
			t.Errorf("%q: %v, %v, want %v", text, set, err, want)
		}
		if again, err := ParseSet(set.String()); err != nil || !slices.Equal(again, set) {
			t.Errorf("%q: written as %q, read as %v, %v", text, set.String(), again, err)
		}
	}
	for _, text := range []string{"a", "1-", "-1", "3-1", "1,1", "2,1", "0-65536", "99999999999", "1,,2", "0-3,2", "1 2"} {
		if set, err := ParseSet(text); !errors.Is(err, ErrText) {
			t.Errorf("%q: %v, %v, want ErrText", text, set, err)
		}
	}
}

func TestSets(t *testing.T) {
	a, b := Set{0, 1, 2, 8}, Set{1, 8, 9}
	if got := a.Intersect(b); !slices.Equal(got, Set{1, 8}) {
		t.Errorf("intersection %v", got)
	}
	if a.Within(b) || !(Set{1, 8}).Within(a) || !(Set)(nil).Within(a) {
		t.Error("Within is wrong")
	}
}

// TestOfflineNodes: nodes 1 and 3 have directories, the kernel says that they are
// offline; node 10 comes behind node 2 though its name does not.
func TestOfflineNodes(t *testing.T) {
	root := fstest.MapFS{nodeDir + "/online": file("0,2,10\n"), nodeDir + "/power/x": file("")}
	for _, name := range []string{"node0", "node1", "node2", "node3", "node10"} {
		root[nodeDir+"/"+name+"/cpulist"] = file("\n")
	}
	root[nodeDir+"/node2/cpulist"] = file("4-7\n")
	root[nodeDir+"/node2/meminfo"] = file("\nNode 2 MemTotal:       1024 kB\nNode 2 MemFree:        512 kB\nNode 2 MemUsed: 512 kB\nNode 2 FilePages: 96 kB\nNode 2 Shmem: 32 kB\n")
	root[nodeDir+"/node2/distance"] = file("21 10 31\n")
	root[nodeDir+"/node0/distance"] = file("10 21\n") // a row of another length
	nodes, err := Nodes(root)
	if err != nil || len(nodes) != 3 {
		t.Fatalf("%+v, %v", nodes, err)
	}
	if nodes[0].ID != 0 || nodes[1].ID != 2 || nodes[2].ID != 10 {
		t.Errorf("order: %+v", nodes)
	}
	two := nodes[1]
	if two.MemoryBytes != 1<<20 || two.FreeBytes != 512<<10 || two.CacheBytes != 64<<10 || two.CPUs.String() != "4-7" || !slices.Equal(two.Distances, []int{21, 10, 31}) {
		t.Errorf("node 2: %+v", two)
	}
	if nodes[0].Distances != nil {
		t.Errorf("a row that names other nodes was taken: %v", nodes[0].Distances)
	}
	for cpus, want := range map[string]int{"4,6": 2, "0": Unknown, "": Unknown, "4-8": Unknown} {
		set, _ := ParseSet(cpus)
		if got := NodeOf(nodes, set); got != want {
			t.Errorf("CPUs %q are on node %d, want %d", cpus, got, want)
		}
	}
}

func TestWithoutNUMA(t *testing.T) {
	if nodes, err := Nodes(fstest.MapFS{}); err != nil || len(nodes) != 0 {
		t.Errorf("%+v, %v", nodes, err)
	}
	if allowed, err := Allowed(fstest.MapFS{}); err != nil || allowed.CPUs != nil || allowed.Nodes != nil {
		t.Errorf("%+v, %v", allowed, err)
	}
}

func TestBadNodeFiles(t *testing.T) {
	for name, c := range map[string]struct{ file, text string }{
		"CPUs":     {"node0/cpulist", "0-x"},
		"online":   {"online", "1-0"},
		"memory":   {"node0/meminfo", "Node 0 MemTotal: many kB"},
		"distance": {"node0/distance", "300"},
		"too long": {"node0/meminfo", string(make([]byte, maxTextBytes+1))},
	} {
		root := fstest.MapFS{nodeDir + "/node0/uevent": file(""), nodeDir + "/" + c.file: file(c.text)}
		if nodes, err := Nodes(root); !errors.Is(err, ErrText) {
			t.Errorf("%s: %+v, %v, want ErrText", name, nodes, err)
		}
	}
}

// TestThisMachine: whatever runs the tests can be read.
func TestThisMachine(t *testing.T) {
	root := os.DirFS("/")
	nodes, err := Nodes(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		t.Logf("node %d: CPUs %s, %d MiB, distances %v", n.ID, n.CPUs, n.MemoryBytes>>20, n.Distances)
	}
	allowed, err := Allowed(root)
	if err != nil || len(allowed.CPUs) == 0 {
		t.Errorf("%+v, %v", allowed, err)
	}
}
