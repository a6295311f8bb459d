package topology

import (
	"errors"
	"fmt"
	"io/fs"
)

// Where the list of GPUs is from.
const (
	SourceDriver = "driver"
	SourceSysfs  = "sysfs"
)

// Machine is what could be learnt of the machine.
type Machine struct {
	Nodes   []Node    `json:"nodes"`
	Allowed Allowance `json:"allowed"`
	GPUs    []GPU     `json:"gpus"`
	// GPUSource is SourceDriver or SourceSysfs.
	GPUSource string `json:"gpu_source"`
	NICs      []NIC  `json:"nics"`
	// Notes say what could not be learnt, for people.
	Notes []string `json:"notes,omitempty"`
}

// Read reads the machine from its root file system and its GPU driver. A driver
// that fails is noted; sysfs names the GPUs then.
func Read(root fs.FS, driver Driver) (*Machine, error) {
	m := &Machine{GPUSource: SourceDriver}
	var err error
	if m.Nodes, err = Nodes(root); err != nil {
		return nil, err
	}
	if m.Allowed, err = Allowed(root); err != nil {
		return nil, err
	}
	known, err := driver.GPUs()
	if err != nil {
		if !errors.Is(err, ErrNoDriver) {
			m.note("the GPU driver fails, sysfs names the GPUs: %v", err)
		}
		m.GPUSource = SourceSysfs
		if known, err = sysfsGPUs(root); err != nil {
			return nil, err
		}
	}
	if m.GPUs, err = gpusOf(root, known); err != nil {
		return nil, err
	}
	if m.NICs, err = nicsOf(root); err != nil {
		return nil, err
	}
	m.inferNodes()
	return m, nil
}

func (m *Machine) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// locations returns those of all GPUs, then of all network adapters.
func (m *Machine) locations() []*Location {
	all := make([]*Location, 0, len(m.GPUs)+len(m.NICs))
	for i := range m.GPUs {
		all = append(all, &m.GPUs[i].Location)
	}
	for i := range m.NICs {
		all = append(all, &m.NICs[i].Location)
	}
	return all
}

// inferNodes finds the nodes of devices of which the kernel does not say, and
// forgets those that are not online: nothing can be placed there.
func (m *Machine) inferNodes() {
	all := m.locations()
	for _, at := range all {
		if at.Node != Unknown && m.node(at.Node) == nil {
			at.Node, at.NodeFrom = Unknown, ""
		}
	}
	ofBridge := map[string]int{}
	for _, at := range all {
		if at.Node == Unknown || at.HostBridge == "" {
			continue
		}
		if before, seen := ofBridge[at.HostBridge]; seen && before != at.Node {
			ofBridge[at.HostBridge] = Unknown // they disagree
			continue
		}
		ofBridge[at.HostBridge] = at.Node
	}
	for i, at := range all {
		if at.Node != Unknown || at.Address == "" {
			continue
		}
		if node := NodeOf(m.Nodes, at.CPUs); node != Unknown {
			at.Node, at.NodeFrom = node, FromCPUs
		} else if node, seen := ofBridge[at.HostBridge]; seen && node != Unknown {
			at.Node, at.NodeFrom = node, FromBridge
		}
		if len(m.Nodes) == 1 {
			at.Node, at.NodeFrom = m.Nodes[0].ID, FromOnly
		}
		if at.Node == Unknown && i < len(m.GPUs) && len(m.Nodes) > 1 {
			m.note("%s: nothing says which NUMA node is next to it; a firmware that does not tell can be corrected by writing to /%s/%s/numa_node",
				m.GPUs[i].Label(), pciDir, at.Address)
		}
	}
}

// node returns a node by its number, nil when it is not online.
func (m *Machine) node(id int) *Node {
	for i := range m.Nodes {
		if m.Nodes[i].ID == id {
			return &m.Nodes[i]
		}
	}
	return nil
}

// between is Between on this machine: one without NUMA has nothing between its
// host bridges.
func (m *Machine) between(a, b *Location) Class {
	class := Between(a, b)
	if class == SYS && len(m.Nodes) == 0 && a.Address != "" && b.Address != "" {
		return NODE
	}
	return class
}

// Matrix is how far the devices are from each other.
type Matrix struct {
	// Devices are the labels of rows and columns: GPUs, then network adapters.
	Devices []string  `json:"devices"`
	Classes [][]Class `json:"classes"`
}

// Matrix compares all devices.
func (m *Machine) Matrix() Matrix {
	all := m.locations()
	matrix := Matrix{Devices: make([]string, 0, len(all)), Classes: make([][]Class, len(all))}
	for i := range m.GPUs {
		matrix.Devices = append(matrix.Devices, m.GPUs[i].Label())
	}
	for i := range m.NICs {
		matrix.Devices = append(matrix.Devices, m.NICs[i].Label())
	}
	for i, a := range all {
		matrix.Classes[i] = make([]Class, len(all))
		for j, b := range all {
			if i != j {
				matrix.Classes[i][j] = m.between(a, b)
			}
		}
	}
	return matrix
}
