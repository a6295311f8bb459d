package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// twoSockets has a GPU and an RDMA device on each of two nodes, the second pair
// behind one switch.
func twoSockets() (*topology.Machine, error) {
	at := func(address, bridge string, node int) topology.Location {
		return topology.Location{Address: topology.Address(address), HostBridge: bridge, Node: node, NodeFrom: topology.FromDevice}
	}
	return &topology.Machine{
		Nodes: []topology.Node{
			{ID: 0, CPUs: topology.Set{0, 1, 2, 3}, MemoryBytes: 64 << 30, FreeBytes: 300 << 20, Distances: []int{10, 21}},
			{ID: 1, CPUs: topology.Set{4, 5, 6, 7}, MemoryBytes: 64 << 30, Distances: []int{21, 10}},
		},
		Allowed:   topology.Allowance{CPUs: topology.Set{0, 1, 2, 3, 4, 5}, Nodes: topology.Set{0, 1}},
		GPUSource: topology.SourceDriver,
		GPUs: []topology.GPU{
			{Index: 0, Name: "NVIDIA H100", UUID: "GPU-1", Location: at("0000:1b:00.0", "pci0000:10", 0)},
			{Index: 1, Name: "NVIDIA H100\x1b[1m", UUID: "GPU-2", Location: at("0000:5c:00.0", "pci0000:50", 1), MIG: []topology.MIG{{UUID: "MIG-1", GPUInstance: 2}}},
		},
		NICs: []topology.NIC{
			{RDMA: "mlx5_0", Location: at("0000:3b:00.0", "pci0000:30", 0), LinkLayer: "InfiniBand", RateGbps: 400, Active: true},
			{RDMA: "mlx5_1", Location: at("0000:5d:00.0", "pci0000:50", 1), LinkLayer: "Ethernet", RateGbps: 200, Active: true, Interfaces: []string{"eth1"}},
			{Interfaces: []string{"eno1"}, Location: topology.Location{Node: topology.Unknown}},
		},
		Notes: []string{"something is not known"},
	}, nil
}

// show runs the command.
func show(t *testing.T, machine func() (*topology.Machine, error), args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	d := workerCommand(&config.WorkerConfig{}, machine)
	d.Out, d.Err = &stdout, &stderr
	code = d.Main(context.Background(), append([]string{"mooncake-worker"}, args...))
	return code, stdout.String(), stderr.String()
}

func TestTables(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-2,GPU-1")
	code, out, errs := show(t, twoSockets, "--device", "cuda-0", "topology")
	if code != command.ExitOK || errs != "" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	for _, want := range []string{
		"  0     0-3   64GiB   300MiB  10 21\n", "CPUs 0-5 and memory of nodes 0-1",
		"  GPU1  0000:5c:00.0  1     NVIDIA H100?[1m  GPU-2\n", "MIG 2/0", "mlx5_0   0000:3b:00.0  0     InfiniBand 400 Gb/s active  -\n",
		"eno1     -             -     no RDMA                     eno1\n",
		"          GPU0  GPU1  mlx5_0  mlx5_1  eno1\n", "  GPU1    SYS   X     SYS     PHB     SYS\n", "PIX: at most one PCIe switch",
		"Worker cuda-0\n  GPU          GPU1\n  NUMA node    1\n  threads      kept to CPUs 4-5\n  RDMA device  mlx5_1 (PHB)\n  why          CUDA device 0 is GPU1",
		"note: something is not known\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, out, _ = show(t, twoSockets, "topology", "--device", "cuda-0", "--affinity", "off"); !strings.Contains(out, "left as they are (affinity: off), not kept to CPUs 4-5") {
		t.Error(out)
	}
}

func TestTopologyAsJSON(t *testing.T) {
	code, out, _ := show(t, twoSockets, "topology", "--device", "cuda-1", "--json")
	var got struct {
		Nodes  []struct{ CPUs string }
		Matrix struct {
			Devices []string
			Classes [][]string
		}
		Device string
		Worker struct {
			NUMANode  int `json:"numa_node"`
			CPUs      string
			GPU, RDMA string
			Distance  string `json:"rdma_distance"`
			Why       []string
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatal(code, err, out)
	}
	if got.Nodes[1].CPUs != "4-7" || got.Matrix.Devices[3] != "mlx5_1" || got.Matrix.Classes[1][3] != "PHB" || got.Device != "cuda-1" {
		t.Errorf("%+v", got)
	}
	if w := got.Worker; w.NUMANode != 1 || w.CPUs != "4-5" || w.GPU != "GPU1" || w.RDMA != "mlx5_1" || w.Distance != "PHB" || len(w.Why) == 0 {
		t.Errorf("%+v", w)
	}
}

func TestTopologyFailures(t *testing.T) {
	code, out, errs := show(t, twoSockets, "topology", "--device", "cuda-2")
	if code != command.ExitFailure || !strings.Contains(errs, "CUDA shows 2 here") || !strings.Contains(out, "Worker cuda-2: nothing belongs to it") || !strings.Contains(out, "NUMA nodes") {
		t.Errorf("no such GPU: %d, %s, %s", code, errs, out)
	}
	broken := func() (*topology.Machine, error) { return nil, errors.New("/sys/x: malformed") }
	if code, _, errs = show(t, broken, "topology"); code != command.ExitFailure || !strings.Contains(errs, "/sys/x: malformed") {
		t.Errorf("broken: %d, %s", code, errs)
	}
	for _, args := range [][]string{{"topology", "--jsn"}, {"topology", "extra"}, {"topology", "--device", "gpu0"}, {"topology", "--affinity", "on"}} {
		if code, _, errs = show(t, twoSockets, args...); code != command.ExitUsage || errs == "" {
			t.Errorf("%q: %d, %s", args, code, errs)
		}
	}
}

// TestBareMachine: nothing is known, and nothing fails.
func TestBareMachine(t *testing.T) {
	bare := func() (*topology.Machine, error) { return &topology.Machine{GPUSource: topology.SourceSysfs}, nil }
	code, out, errs := show(t, bare, "topology")
	if code != 0 || !strings.Contains(out, "NUMA nodes: none known") || !strings.Contains(out, "GPUs: none") || !strings.Contains(out, "the machine has no NUMA nodes") {
		t.Errorf("%d, %s, %s", code, errs, out)
	}
}
