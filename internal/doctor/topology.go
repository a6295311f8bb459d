package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

const seeTopology = "mooncake-worker topology shows the whole"

// gpus says which there are, and whether a worker can be placed next to each.
func gpus(_ context.Context, s *System, _ *Settings) []Finding {
	const where = "/sys/bus/pci/devices"
	if s.Machine == nil {
		return ok("not looked for", "")
	}
	m, err := s.Machine()
	if err != nil {
		return found(Warning, fmt.Sprintf("can't be looked for: %v", err), "/sys", "report it; workers run, but are not placed next to GPUs")
	}
	if len(m.GPUs) == 0 {
		return ok("none, which CPU engines do not need", where)
	}
	var all []Finding
	if m.GPUSource == topology.SourceSysfs {
		what := fmt.Sprintf("%d on the PCI bus, but NVML does not answer", len(m.GPUs))
		all = append(all, found(Info, what+strings.Join(append([]string{""}, m.Notes...), "; "), "libnvidia-ml.so.1",
			"for engines on GPUs load the driver, or start the container with --gpus and the driver capability utility")...)
	}
	var lost, far []string
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.Node == topology.Unknown {
			lost = append(lost, g.Label())
		} else if cpus := cpusOf(m, g.Node); len(cpus) > 0 && m.Allowed.CPUs != nil && len(cpus.Intersect(m.Allowed.CPUs)) == 0 {
			far = append(far, g.Label())
		}
	}
	if len(lost) > 0 && len(m.Nodes) > 1 {
		all = append(all, found(Warning, "nothing says which NUMA node is next to "+strings.Join(lost, ", "), where,
			"enable NUMA reporting in the firmware, or write the node to the device's numa_node; "+seeTopology)...)
	}
	if len(far) > 0 {
		all = append(all, found(Warning, fmt.Sprintf("CPUs %s may be used here, none of which is next to %s", m.Allowed.CPUs, strings.Join(far, ", ")), "/proc/self/status",
			"give the container or unit CPUs of the GPU's NUMA node (cpuset); "+seeTopology)...)
	}
	if len(all) == 0 {
		return ok(fmt.Sprintf("%d, and which NUMA node is next to each is known", len(m.GPUs)), where)
	}
	return all
}

// cpusOf returns the CPUs of a node, none when it is not online.
func cpusOf(m *topology.Machine, id int) topology.Set {
	for i := range m.Nodes {
		if m.Nodes[i].ID == id {
			return m.Nodes[i].CPUs
		}
	}
	return nil
}

// nics looks at RDMA devices, which a store that spans machines uses.
func nics(_ context.Context, s *System, _ *Settings) []Finding {
	const where = "/sys/class/infiniband"
	if s.Machine == nil {
		return ok("not looked for", "")
	}
	m, err := s.Machine()
	if err != nil {
		return ok("can't be looked for, see gpus", "/sys")
	}
	var down []string
	devices := 0
	for i := range m.NICs {
		if nic := &m.NICs[i]; nic.RDMA != "" {
			devices++
			if !nic.Active {
				down = append(down, nic.RDMA)
			}
		}
	}
	if devices == 0 {
		return ok("no RDMA devices, which the store of one machine does not need", where)
	}
	if len(down) > 0 {
		return found(Info, fmt.Sprintf("the links of %s are down, of %d RDMA devices", strings.Join(down, ", "), devices), where, "no worker takes these while another is up: ibstat, rdma link")
	}
	return ok(fmt.Sprintf("%d RDMA devices, all with a link", devices), where)
}
