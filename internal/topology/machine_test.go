package topology

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

func mustRead(t *testing.T, root *tree, driver Driver) *Machine {
	t.Helper()
	m, err := Read(root, driver)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestEightGPUs: of the 17 devices, each GPU and its NIC share a switch, two pairs
// share a host bridge's switch, two host bridges a socket.
func TestEightGPUs(t *testing.T) {
	root, driver := eightGPUs(sockets)
	m := mustRead(t, root, driver)
	if len(m.GPUs) != 8 || len(m.NICs) != 9 || m.GPUSource != SourceDriver || len(m.Notes) != 0 {
		t.Fatalf("%d GPUs, %d NICs, source %s, notes %q", len(m.GPUs), len(m.NICs), m.GPUSource, m.Notes)
	}
	if nic := m.NICs[7]; nic.RDMA != "mlx5_7" || nic.Interfaces[0] != "ib-mlx5_7" || nic.RateGbps != 400 || !nic.Active || nic.Node != 1 || nic.LinkLayer != "InfiniBand" {
		t.Errorf("mlx5_7: %+v", nic)
	}
	if nic := m.NICs[8]; nic.RDMA != "" || nic.Label() != "eno1" || nic.Node != 0 {
		t.Errorf("the management network: %+v", nic)
	}
	matrix := m.Matrix()
	for i := range 8 {
		for j := range 8 {
			want := SYS
			switch {
			case i == j:
				want = PIX
			case i/perBridge == j/perBridge:
				want = PXB
			case i/perSocket == j/perSocket:
				want = NODE
			}
			if got := matrix.Classes[i][8+j]; got != want || matrix.Classes[8+j][i] != got {
				t.Errorf("%s to %s: %s and %s, want %s", matrix.Devices[i], matrix.Devices[8+j], got, matrix.Classes[8+j][i], want)
			}
			if i == j {
				want = Self
			}
			if got := matrix.Classes[i][j]; got != want {
				t.Errorf("%s to %s: %s, want %s", matrix.Devices[i], matrix.Devices[j], got, want)
			}
		}
	}
	if matrix.Classes[0][16] != NODE || matrix.Classes[7][16] != SYS {
		t.Errorf("to the management network: %s, %s", matrix.Classes[0][16], matrix.Classes[7][16])
	}
}

// TestSharedRootBus: devices that hang on the host bridge itself.
func TestSharedRootBus(t *testing.T) {
	a := Location{Address: "0000:00:02.0", HostBridge: "pci0000:00", Node: 0}
	b := Location{Address: "0000:00:03.0", HostBridge: "pci0000:00", Node: 0}
	if got := Between(&a, &b); got != PHB {
		t.Errorf("%s, want PHB", got)
	}
	b.Bridges = []Address{"0000:00:01.0"}
	if got := Between(&a, &b); got != PHB {
		t.Errorf("one behind a root port: %s, want PHB", got)
	}
	a.Bridges = b.Bridges // two functions of one card
	if got := Between(&a, &b); got != PIX {
		t.Errorf("one card: %s, want PIX", got)
	}
	a.Bridges = []Address{"0000:00:01.0", "0000:01:00.0", "0000:02:00.0"} // a bridge behind a port of the switch
	b.Bridges = []Address{"0000:00:01.0"}
	if got := Between(&a, &b); got != PXB {
		t.Errorf("two bridges below the root port: %s, want PXB", got)
	}
}

// TestNestedDomain: below a device that brings a PCI domain of its own only that
// domain's bridges count.
func TestNestedDomain(t *testing.T) {
	host, bridges := parsePath("sys/devices/pci0000:85/0000:85:05.5/pci10001:00/10001:00:02.0/10001:01:00.0")
	if host != "pci10001:00" || len(bridges) != 1 || bridges[0] != "10001:00:02.0" {
		t.Errorf("%q, %q", host, bridges)
	}
	host, bridges = parsePath("sys/devices/LNXSYSTM:00/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0") // Hyper-V's
	if host != "pci0001:00" || len(bridges) != 0 {
		t.Errorf("%q, %q", host, bridges)
	}
}

// TestTwoPorts: of two ports the one that is up counts, of two that are the faster.
func TestTwoPorts(t *testing.T) {
	root, driver := eightGPUs(sockets)
	_, nic := pairWay(0)
	ports := "sys/devices/" + nic + "/infiniband/mlx5_0/ports/"
	root.write(ports+"1/state", "1: DOWN")
	root.write(ports+"2/state", "4: ACTIVE")
	root.write(ports+"2/link_layer", "Ethernet")
	root.write(ports+"2/rate", "25 Gb/sec (1X EDR)")
	if nic := mustRead(t, root, driver).NICs[0]; !nic.Active || nic.RateGbps != 25 || nic.LinkLayer != "Ethernet" {
		t.Errorf("one up: %+v", nic)
	}
	root.write(ports+"1/state", "4: ACTIVE")
	if nic := mustRead(t, root, driver).NICs[0]; nic.RateGbps != 400 || nic.LinkLayer != "InfiniBand" {
		t.Errorf("both up: %+v", nic)
	}
}

// TestSysfsOnly: without NVML the GPUs are those of PCI, the management chip is
// none of them, and the kernel module tells UUIDs.
func TestSysfsOnly(t *testing.T) {
	root, driver := eightGPUs(sockets)
	third := driver.all[2]
	root.write(procDir+"/"+string(third.Address)+"/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t 128\nGPU UUID: \t GPU-33333333-4444\nBus Type: PCIe")
	unused := driver.all[3] // the kernel module does not know yet
	root.write(procDir+"/"+string(unused.Address)+"/information", "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????")
	for name, err := range map[string]error{"none": ErrNoDriver, "broken": errors.New("version mismatch")} {
		m := mustRead(t, root, gpus{err: err})
		if len(m.GPUs) != 8 || m.GPUSource != SourceSysfs {
			t.Fatalf("%s: %+v from %s", name, m.GPUs, m.GPUSource)
		}
		if g := m.GPUs[2]; g.UUID != "GPU-33333333-4444" || g.Name != "NVIDIA H100 80GB HBM3" || g.Address != third.Address {
			t.Errorf("%s: GPU 2: %+v", name, g)
		}
		if g := m.GPUs[3]; g.UUID != "" {
			t.Errorf("%s: GPU 3: %+v", name, g)
		}
		if g := m.GPUs[7]; g.UUID != "" || g.Name != "NVIDIA 2330" || g.Node != 1 {
			t.Errorf("%s: GPU 7: %+v", name, g)
		}
		if want := name == "broken"; want != (len(m.Notes) == 1) {
			t.Errorf("%s: notes %q", name, m.Notes)
		}
	}
}

// TestUnknownNode: the firmware tells of no device which node it is next to. The
// driver may, and one device's word counts for what is under its host bridge.
func TestUnknownNode(t *testing.T) {
	root, driver := eightGPUs(func(int) int { return Unknown })
	m := mustRead(t, root, driver)
	if m.GPUs[0].Node != Unknown || len(m.Notes) != 8 || !strings.Contains(m.Notes[0], "numa_node") {
		t.Errorf("%+v, notes %q", m.GPUs[0], m.Notes)
	}
	if got := m.Matrix().Classes[0][8+2]; got != SYS {
		t.Errorf("another host bridge, nodes unknown: %s, want SYS", got)
	}
	driver.all[5].Node = 1
	m = mustRead(t, root, driver)
	if g := m.GPUs[5]; g.Node != 1 || g.NodeFrom != FromDriver {
		t.Errorf("told by the driver: %+v", g)
	}
	if g := m.GPUs[4]; g.Node != 1 || g.NodeFrom != FromBridge {
		t.Errorf("under the same host bridge: %+v", g)
	}
	if nic := m.NICs[4]; nic.Node != 1 {
		t.Errorf("its NIC: %+v", nic)
	}
	driver.all[4].Node = 0 // they disagree
	if m = mustRead(t, root, driver); m.NICs[4].Node != Unknown {
		t.Errorf("a NIC took one of two nodes: %+v", m.NICs[4])
	}
	gpu, _ := pairWay(0)
	root.write("sys/devices/"+gpu+"/local_cpulist", "48-95,144-191")
	if g := mustRead(t, root, driver).GPUs[0]; g.Node != 1 || g.NodeFrom != FromCPUs {
		t.Errorf("told by its CPUs: %+v", g)
	}
}

// TestOfflineNode: a device next to a node that is offline is next to none.
func TestOfflineNode(t *testing.T) {
	root, driver := eightGPUs(sockets)
	root.write(nodeDir+"/online", "0")
	root.write(nodeDir+"/node0/distance", "10")
	m := mustRead(t, root, driver)
	if len(m.Nodes) != 1 || m.GPUs[7].Node != 0 || m.GPUs[7].NodeFrom != FromOnly {
		t.Errorf("nodes %+v, GPU 7 %+v", m.Nodes, m.GPUs[7])
	}
	if p, err := m.Assign(Wanted{CUDA: true, Number: 7}); err != nil || p.CPUs != nil || p.Node != 0 {
		t.Errorf("one node, and yet its threads are placed: %+v, %v", p, err)
	}
	root.node(2, "192-200", 1, "10 21")
	root.write(nodeDir+"/online", "0,2")
	if m = mustRead(t, root, driver); m.GPUs[7].Node != Unknown {
		t.Errorf("two nodes: GPU 7 %+v", m.GPUs[7])
	}
}

// TestOtherMachines: without NUMA, without PCI, without anything.
func TestOtherMachines(t *testing.T) {
	root, driver := eightGPUs(func(int) int { return Unknown })
	for name := range root.MapFS {
		if strings.HasPrefix(name, nodeDir) {
			delete(root.MapFS, name)
		}
	}
	m := mustRead(t, root, driver)
	if len(m.Nodes) != 0 || len(m.Notes) != 0 || m.Matrix().Classes[0][8+7] != NODE || m.Matrix().Classes[0][8] != PIX {
		t.Errorf("no NUMA: %+v", m)
	}
	bare := newTree()
	m = mustRead(t, bare, gpus{all: driver.all[:2]}) // a container without /sys
	if len(m.GPUs) != 2 || m.GPUs[0].Node != Unknown || m.Matrix().Classes[0][1] != NODE {
		t.Errorf("no PCI: %+v", m)
	}
	if m = mustRead(t, bare, gpus{err: ErrNoDriver}); len(m.GPUs)+len(m.NICs)+len(m.Nodes) != 0 {
		t.Errorf("nothing: %+v", m)
	}
	bare.write("sys/devices/virtual/infiniband/rxe0/ports/1/state", "1: DOWN")
	bare.link(rdmaDir+"/rxe0", "sys/devices/virtual/infiniband/rxe0")
	if m = mustRead(t, bare, gpus{err: ErrNoDriver}); len(m.NICs) != 1 || m.NICs[0].Address != "" || m.NICs[0].Active || m.NICs[0].Label() != "rxe0" {
		t.Errorf("RDMA in software: %+v", m.NICs)
	}
}

// TestVirtio: a network interface whose PCI function is its grandparent.
func TestVirtio(t *testing.T) {
	root := newTree()
	root.node(0, "0-1", 16, "10")
	root.function("pci0000:00/0000:00:03.0", 0x020000, 0x1af4, Unknown, "0-1")
	root.net("eth0", "pci0000:00/0000:00:03.0/virtio2")
	m := mustRead(t, root, gpus{err: ErrNoDriver})
	if len(m.NICs) != 1 || m.NICs[0].Address != "0000:00:03.0" || m.NICs[0].NodeFrom != FromCPUs && m.NICs[0].NodeFrom != FromOnly {
		t.Errorf("%+v", m.NICs)
	}
}

func TestBadFiles(t *testing.T) {
	gpu, nic := pairWay(3)
	for name, c := range map[string]struct{ file, text string }{
		"node of a GPU":   {"sys/devices/" + gpu + "/numa_node", "one"},
		"node below -1":   {"sys/devices/" + gpu + "/numa_node", "-7"},
		"CPUs of a GPU":   {"sys/devices/" + gpu + "/local_cpulist", "0-"},
		"node of a NIC":   {"sys/devices/" + nic + "/numa_node", "99999999999"},
		"rate of a NIC":   {"sys/devices/" + nic + "/infiniband/mlx5_3/ports/1/rate", "fast"},
		"allowed CPUs":    {"proc/self/status", "Cpus_allowed_list: x"},
		"a class of none": {"sys/devices/" + gpu + "/class", "display"},
	} {
		root, _ := eightGPUs(sockets)
		root.write(c.file, c.text)
		if _, err := Read(root, gpus{err: ErrNoDriver}); !errors.Is(err, ErrText) || !strings.Contains(err.Error(), "/") {
			t.Errorf("%s: %v, want ErrText and the file's name", name, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]Address{
		"0000:3b:00.0": "0000:3b:00.0", "00000000:3B:00.0": "0000:3b:00.0", "3b:00.1": "0000:3b:00.1", "10000:e1:00.0": "10000:e1:00.0", "0001:ff:1f.7": "0001:ff:1f.7",
	} {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0000", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:100:00.0", "x:3b:00.0", "0:0:0:0.0", "virtio2"} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}

func TestNamesInOrder(t *testing.T) {
	if compareNames("mlx5_2", "mlx5_10") >= 0 || compareNames("mlx5_bond_0", "mlx5_1") <= 0 || compareNames("eth0", "eth0") != 0 {
		t.Error("names are not in the order of their numbers")
	}
}

func TestMachineAsJSON(t *testing.T) {
	root, driver := eightGPUs(sockets)
	m := mustRead(t, root, driver)
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"cpus":"0-47,96-143"`, `"numa_node":1`, `"rate_gbps":400`, `"distances":[10,21]`} {
		if !strings.Contains(string(data), part) {
			t.Errorf("no %s in %s", part, data)
		}
	}
	var again Machine
	if err := json.Unmarshal(data, &again); err != nil || again.GPUs[7].CPUs.String() != m.GPUs[7].CPUs.String() {
		t.Errorf("read back: %v, %+v", err, again.GPUs)
	}
}

// TestReadThisMachine: whatever runs the tests can be read.
func TestReadThisMachine(t *testing.T) {
	m, err := Read(os.DirFS("/"), gpus{err: ErrNoDriver})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	for _, wanted := range []Wanted{{}, {Number: 1}} {
		if _, err := m.Assign(wanted); err != nil {
			t.Error(strconv.Itoa(wanted.Number), err)
		}
	}
}
