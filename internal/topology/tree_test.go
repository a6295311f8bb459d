package topology

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"testing/fstest"
)

// tree builds a root file system as the kernel would show a machine's.
type tree struct {
	fstest.MapFS
	nodes []string // of which the kernel says that they are online
}

func newTree() *tree {
	return &tree{MapFS: fstest.MapFS{}}
}

func (t *tree) write(name, text string) { t.MapFS[name] = file(text + "\n") }

// link makes a symbolic link at name that leads to target, both below the root.
func (t *tree) link(name, target string) {
	up := strings.Repeat("../", strings.Count(path.Dir(name), "/")+1)
	t.MapFS[name] = &fstest.MapFile{Data: []byte(up + target), Mode: fs.ModeSymlink}
}

// node adds a NUMA node that is online.
func (t *tree) node(id int, cpus string, gibibytes int, distances string) {
	dir := nodeDir + "/node" + strconv.Itoa(id)
	t.write(dir+"/cpulist", cpus)
	t.write(dir+"/distance", distances)
	t.write(dir+"/meminfo", fmt.Sprintf("\nNode %d MemTotal: %d kB\nNode %d MemFree: %d kB", id, gibibytes<<20, id, gibibytes<<19))
	t.nodes = append(t.nodes, strconv.Itoa(id))
	t.write(nodeDir+"/online", strings.Join(t.nodes, ","))
}

// allow sets what the process may use.
func (t *tree) allow(cpus, nodes string) {
	t.write("proc/self/status", "Name:\tworker\nCpus_allowed:\tff\nCpus_allowed_list:\t"+cpus+"\nMems_allowed_list:\t"+nodes)
}

// function adds a PCI function. way is its path below /sys/devices.
func (t *tree) function(way string, class, vendor, node int, cpus string) {
	dir := "sys/devices/" + way
	t.write(dir+"/class", fmt.Sprintf("0x%06x", class))
	t.write(dir+"/vendor", fmt.Sprintf("0x%04x", vendor))
	t.write(dir+"/device", "0x2330")
	t.write(dir+"/numa_node", strconv.Itoa(node))
	t.write(dir+"/local_cpulist", cpus)
	t.link(pciDir+"/"+path.Base(way), dir)
}

// rdma adds an RDMA device with a network interface to a PCI function.
func (t *tree) rdma(name, way, state string, gbps int) {
	dir := "sys/devices/" + way + "/infiniband/" + name
	t.link(rdmaDir+"/"+name, dir)
	t.link(dir+"/device", "sys/devices/"+way)
	t.write(dir+"/ports/1/state", state)
	t.write(dir+"/ports/1/link_layer", "InfiniBand")
	t.write(dir+"/ports/1/rate", fmt.Sprintf("%d Gb/sec (4X NDR)", gbps))
	t.net("ib-"+name, way)
}

// net adds a network interface to what is at way.
func (t *tree) net(name, way string) {
	dir := "sys/devices/" + way + "/net/" + name
	t.link(netDir+"/"+name, dir)
	t.link(dir+"/device", "sys/devices/"+way)
}

// gpus is a driver that knows what it is told.
type gpus struct {
	all []DriverGPU
	err error
}

// GPUs implements Driver.
func (g gpus) GPUs() ([]DriverGPU, error) { return g.all, g.err }

const (
	classNIC      = 0x020700
	classGPU      = 0x030200
	classVGA      = 0x030000
	vendorNIC     = 0x15b3
	vendorConsole = 0x1a03
)

// The shape of eightGPUs: each of two sockets has two host bridges, each of which
// has a switch with two pairs of GPU and NIC. Each pair is behind a second switch
// of its own.
const perSocket, perBridge = 4, 2

func pairWay(i int) (gpu, nic string) {
	bridge := i / perBridge // one of four
	bus := 0x10 + bridge*0x40
	root := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1)
	inner := bus + 3 + (i%perBridge)*8
	outer := fmt.Sprintf("%s/0000:%02x:%02x.0/0000:%02x:00.0", root, bus+2, i%perBridge, inner)
	return fmt.Sprintf("%s/0000:%02x:00.0/0000:%02x:00.0", outer, inner+1, inner+2), fmt.Sprintf("%s/0000:%02x:01.0/0000:%02x:00.0", outer, inner+1, inner+3)
}

// eightGPUs is a node of two sockets with 48 cores each, eight GPUs and eight RDMA
// devices, besides a management network and the management chip's display.
// nodeOf gives a socket's number as the firmware tells it.
func eightGPUs(nodeOf func(socket int) int) (*tree, gpus) {
	t := newTree()
	cpus := []string{"0-47,96-143", "48-95,144-191"}
	t.node(0, cpus[0], 1024, "10 21")
	t.node(1, cpus[1], 1024, "21 10")
	t.allow("0-191", "0-1")
	var driver gpus
	for i := range 2 * perSocket {
		socket := i / perSocket
		node, local := nodeOf(socket), cpus[socket]
		if node == Unknown {
			local = "0-191"
		}
		gpu, nic := pairWay(i)
		t.function(gpu, classGPU, vendorNVIDIA, node, local)
		t.function(nic, classNIC, vendorNIC, node, local)
		t.rdma("mlx5_"+strconv.Itoa(i), nic, "4: ACTIVE", 400)
		address := strings.ToUpper("0000" + path.Base(gpu)) // as NVML writes it
		parsed, _ := ParseAddress(address)
		driver.all = append(driver.all, DriverGPU{Name: "NVIDIA H100", UUID: fmt.Sprintf("GPU-%08x-1111", i), Address: parsed, Node: Unknown})
	}
	t.function("pci0000:00/0000:00:1c.0/0000:01:00.0", classVGA, vendorConsole, 0, cpus[0])
	t.function("pci0000:00/0000:00:1d.0/0000:02:00.0", 0x020000, 0x8086, 0, cpus[0])
	t.net("eno1", "pci0000:00/0000:00:1d.0/0000:02:00.0")
	t.net("lo", "virtual")
	delete(t.MapFS, "sys/devices/virtual/net/lo/device")
	return t, driver
}

func sockets(socket int) int { return socket }
