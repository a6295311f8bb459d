package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

func TestGPUsAndAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*topology.Machine)
		check    string
		severity Severity
		says     string
	}{
		"fine":            {func(*topology.Machine) {}, "gpus", OK, "2, and which NUMA node"},
		"links up":        {func(*topology.Machine) {}, "nics", OK, "2 RDMA devices"},
		"no GPUs":         {func(m *topology.Machine) { m.GPUs = nil }, "gpus", OK, "none"},
		"no RDMA":         {func(m *topology.Machine) { m.NICs = nil }, "nics", OK, "no RDMA devices"},
		"no NVML":         {func(m *topology.Machine) { m.GPUSource = topology.SourceSysfs }, "gpus", Info, "NVML does not answer"},
		"NVML fails":      {func(m *topology.Machine) { m.GPUSource, m.Notes = topology.SourceSysfs, []string{"version mismatch"} }, "gpus", Info, "; version mismatch"},
		"unknown node":    {func(m *topology.Machine) { m.GPUs[1].Node = topology.Unknown }, "gpus", Warning, "node is next to GPU1"},
		"far from CPUs":   {func(m *topology.Machine) { m.Allowed.CPUs = topology.Set{0, 1} }, "gpus", Warning, "none of which is next to GPU1"},
		"a link is down":  {func(m *topology.Machine) { m.NICs[1].Active = false }, "nics", Info, "mlx5_1 are down, of 2"},
		"one node":        {func(m *topology.Machine) { m.Nodes, m.GPUs[1].Node = m.Nodes[:1], topology.Unknown }, "gpus", OK, "2"},
		"no RDMA at all":  {func(m *topology.Machine) { m.NICs = []topology.NIC{{Interfaces: []string{"eno1"}}} }, "nics", OK, "no RDMA devices"},
		"CPUs not listed": {func(m *topology.Machine) { m.Allowed.CPUs = nil }, "gpus", OK, "2"},
	} {
		s, settings, _, _ := machine()
		m := &topology.Machine{
			Nodes:     []topology.Node{{ID: 0, CPUs: topology.Set{0, 1}}, {ID: 1, CPUs: topology.Set{2, 3}}},
			Allowed:   topology.Allowance{CPUs: topology.Set{0, 1, 2, 3}},
			GPUSource: topology.SourceDriver,
			GPUs:      []topology.GPU{{Index: 0}, {Index: 1, Location: topology.Location{Node: 1}}},
			NICs:      []topology.NIC{{RDMA: "mlx5_0", Active: true}, {RDMA: "mlx5_1", Active: true}},
		}
		c.change(m)
		s.Machine = func() (*topology.Machine, error) { return m, nil }
		wanted(t, name, Run(t.Context(), s, settings), c.check, c.severity, c.says)
	}
	s, settings, _, _ := machine()
	s.Machine = func() (*topology.Machine, error) { return nil, errors.New("/sys/x: malformed") }
	wanted(t, "unreadable", Run(t.Context(), s, settings), "gpus", Warning, "/sys/x: malformed")
}

func wanted(t *testing.T, name string, findings []Finding, check string, severity Severity, says string) {
	t.Helper()
	for _, f := range findings {
		if f.Check == check && f.Severity == severity && strings.Contains(f.What, says) {
			if severity == Warning && (f.Do == "" || f.Where == "") {
				t.Errorf("%s: it says neither where nor what to do: %+v", name, f)
			}
			return
		}
	}
	t.Errorf("%s: no %s %s %q in %+v", name, check, severity, says, findings)
}
