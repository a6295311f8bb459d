package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Wanted names a worker's device.
type Wanted struct {
	// CUDA: the device is a GPU; else it is the host's memory.
	CUDA bool
	// Number is CUDA's number of the device, as the worker's environment has it.
	Number int
	// Visible is CUDA_VISIBLE_DEVICES, nil when it is not set.
	Visible *string
	// Order is CUDA_DEVICE_ORDER.
	Order string
}

// Placement is what of the machine belongs to a worker.
type Placement struct {
	// Node is where its memory should be, Unknown when none is better than others.
	Node int `json:"numa_node"`
	// CPUs are those that its threads should keep to, nil to leave them as they are.
	CPUs Set `json:"cpus,omitempty"`
	// GPU is the label of the GPU, empty for none; MIG the UUID of the part.
	GPU string `json:"gpu,omitempty"`
	MIG string `json:"mig,omitempty"`
	// RDMA is the name of the RDMA device next to it, empty for none. Distance says
	// how near.
	RDMA     string `json:"rdma,omitempty"`
	Distance Class  `json:"rdma_distance"`
	// Why are the reasons, one sentence each.
	Why []string `json:"why"`
}

func (p *Placement) because(format string, args ...any) {
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

// Reasons returns them as one text.
func (p *Placement) Reasons() string { return strings.Join(p.Why, "; ") }

// Assign says what belongs to a worker. An error means that CUDA would not have
// its device.
func (m *Machine) Assign(w Wanted) (Placement, error) {
	p := Placement{Node: Unknown, Distance: SYS}
	if !w.CUDA {
		m.assignHost(&p, w.Number)
		return p, nil
	}
	gpu, err := m.assignGPU(&p, &w)
	if err != nil {
		return Placement{}, err
	}
	m.assignCPUs(&p, gpu)
	m.assignRDMA(&p, &gpu.Location, m.rival(gpu))
	return p, nil
}

// assignHost places a worker for memory of the host by where it may run: whoever
// started it, or a control group, chose that.
func (m *Machine) assignHost(p *Placement, number int) {
	switch p.Node = NodeOf(m.Nodes, m.Allowed.CPUs); {
	case len(m.Nodes) == 0:
		p.because("the machine has no NUMA nodes")
	case len(m.Nodes) == 1:
		p.Node = m.Nodes[0].ID
		p.because("the machine has one NUMA node")
	case p.Node != Unknown:
		p.because("it may run on CPUs %s only, which are on node %d", m.Allowed.CPUs, p.Node)
	default:
		p.because("it may run on CPUs of several nodes, and the host's memory is on all of them")
	}
	m.assignRDMA(p, &Location{Node: p.Node}, func([]int) int { return max(number, 0) })
}

// assignGPU finds the worker's GPU and takes its node.
func (m *Machine) assignGPU(p *Placement, w *Wanted) (*GPU, error) {
	devices, why := cudaDevices(m.GPUs, w.Visible)
	if w.Number < 0 || w.Number >= len(devices) {
		if why != nil {
			return nil, fmt.Errorf("cuda-%d: %w", w.Number, why)
		}
		return nil, fmt.Errorf("cuda-%d: %w: CUDA shows %d here", w.Number, ErrNoDevice, len(devices))
	}
	device := devices[w.Number]
	gpu := device.gpu
	p.GPU = gpu.Label()
	p.because("CUDA device %d is %s (%s)", w.Number, p.GPU, gpu.Address)
	if m.GPUSource == SourceSysfs {
		p.because("that may be wrong: NVML does not answer, and in a container sysfs shows GPUs of others too")
	}
	if device.mig != nil {
		p.MIG = device.mig.UUID
	}
	if w.Order != "PCI_BUS_ID" && slices.ContainsFunc(m.GPUs, func(g GPU) bool { return g.Name != gpu.Name }) {
		p.because("that may be wrong: with GPUs of several models CUDA numbers the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID")
	}
	p.Node = gpu.Node
	if gpu.Node == Unknown {
		p.because("nothing says which NUMA node is next to it")
	} else {
		p.because("it is next to node %d (%s)", gpu.Node, gpu.NodeFrom)
	}
	return gpu, nil
}

// assignCPUs chooses those of the GPU's node that the process may use.
func (m *Machine) assignCPUs(p *Placement, gpu *GPU) {
	if p.Node == Unknown || len(m.Nodes) == 1 {
		return
	}
	near := m.node(p.Node).CPUs
	switch both := near.Intersect(m.Allowed.CPUs); {
	case len(near) == 0:
		p.because("node %d has no CPUs", p.Node)
	case m.Allowed.CPUs == nil:
		p.CPUs = near
	case len(both) == 0:
		p.because("it may run on CPUs %s only, none of which is next to %s", m.Allowed.CPUs, gpu.Label())
	case len(both) < len(m.Allowed.CPUs):
		p.CPUs = both
		p.because("of CPUs %s it keeps to those of the node", m.Allowed.CPUs)
	default:
		p.because("it may run on CPUs of that node only")
	}
	if m.Allowed.Nodes != nil && !m.Allowed.Nodes.Has(p.Node) {
		p.because("it may not have memory of node %d (cpuset)", p.Node)
	}
}

// nearestRDMA returns the RDMA devices that are nearest, by their indexes. Those
// whose link is down count only when all are.
func (m *Machine) nearestRDMA(to *Location) (indexes []int, class Class) {
	for _, mustBeActive := range []bool{true, false} {
		class = SYS
		for i := range m.NICs {
			nic := &m.NICs[i]
			if nic.RDMA == "" || mustBeActive && !nic.Active {
				continue
			}
			between := m.between(to, &nic.Location)
			if between < class {
				indexes, class = nil, between
			}
			if between == class {
				indexes = append(indexes, i)
			}
		}
		if len(indexes) > 0 {
			break
		}
	}
	return indexes, class
}

// assignRDMA chooses one of the RDMA devices that are nearest. rank counts the
// worker among those with the same choice, so that they take different ones.
func (m *Machine) assignRDMA(p *Placement, at *Location, rank func(choice []int) int) {
	choice, class := m.nearestRDMA(at)
	if len(choice) == 0 {
		return
	}
	nic := &m.NICs[choice[rank(choice)%len(choice)]]
	p.RDMA, p.Distance = nic.RDMA, class
	p.because("RDMA device %s is %s, as near as any (%d of them)", nic.RDMA, class, len(choice))
	if !nic.Active {
		p.because("its link is down, like those of all others")
	}
}

// rival returns the rank of a GPU among those that have the same RDMA devices to
// choose from.
func (m *Machine) rival(gpu *GPU) func(choice []int) int {
	return func(choice []int) int {
		rank := 0
		for i := range m.GPUs[:gpu.Index] {
			if other, _ := m.nearestRDMA(&m.GPUs[i].Location); slices.Equal(other, choice) {
				rank++
			}
		}
		return rank
	}
}
