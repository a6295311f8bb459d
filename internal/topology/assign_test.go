package topology

import (
	"errors"
	"strings"
	"testing"
)

func ptr(text string) *string { return &text }

// TestVisibleDevices: what CUDA would show, by the number of the GPU or the UUID
// of the MIG part. A name in brackets ends the list.
func TestVisibleDevices(t *testing.T) {
	root, driver := eightGPUs(sockets)
	driver.all[7].MIG = []MIG{{UUID: "MIG-aaaa-1", GPUInstance: 1}, {UUID: "MIG-aaaa-2", GPUInstance: 2}}
	m := mustRead(t, root, driver)
	for visible, want := range map[string]string{
		"0,1": "GPU0 GPU1", " 6 , 2 ": "GPU6 GPU2", "3": "GPU3",
		"GPU-00000004-1111,GPU-00000001": "GPU4 GPU1", // the beginning of a UUID is enough
		"2,8,3":                          "GPU2 !",    // nothing behind a number too large
		"2,-1,3":                         "GPU2 !",
		"1,x":                            "GPU1 !",
		"GPU-0000000":                    "!", // of several
		"GPU-99999999":                   "!",
		"MIG-aaaa-2,MIG-aaaa-1":          "MIG-aaaa-2 MIG-aaaa-1",
		"MIG-aaaa":                       "!",
		"MIG-GPU-00000007-1111/2/0":      "MIG-aaaa-2",
		"MIG-GPU-00000007-1111/3/0":      "!",
		"MIG-GPU-00000007-1111":          "!",
		"":                               "!",
		"NoDevFiles":                     "!",
		"0,1,0":                          "!", // one twice: CUDA shows none
	} {
		devices, why := cudaDevices(m.GPUs, &visible)
		var got []string
		for _, d := range devices {
			if d.mig != nil {
				got = append(got, d.mig.UUID)
			} else {
				got = append(got, d.gpu.Label())
			}
		}
		if why != nil {
			got = append(got, "!")
		}
		if strings.Join(got, " ") != want || why != nil && !errors.Is(why, ErrNoDevice) {
			t.Errorf("%q: %q, %v, want %q", visible, got, why, want)
		}
	}
	if devices, why := cudaDevices(m.GPUs, nil); len(devices) != 8 || why != nil {
		t.Errorf("not set: %d, %v", len(devices), why)
	}
	if devices, why := cudaDevices(m.GPUs, ptr(strings.Repeat("0", maxVisibleBytes+1))); devices != nil || !errors.Is(why, ErrText) {
		t.Errorf("too long: %v, %v", devices, why)
	}
	unnamed := mustRead(t, root, gpus{err: ErrNoDriver})
	if _, why := cudaDevices(unnamed.GPUs, ptr("GPU-00000001")); why == nil || !strings.Contains(why.Error(), "does not tell UUIDs") {
		t.Errorf("sysfs only: %v", why)
	}
}

// TestEveryGPUHasItsOwn: worker i of eight has the node, CPUs and RDMA device of
// GPU i, whatever order CUDA_VISIBLE_DEVICES brings them in.
func TestEveryGPUHasItsOwn(t *testing.T) {
	root, driver := eightGPUs(sockets)
	m := mustRead(t, root, driver)
	for i := range 8 {
		p, err := m.Assign(Wanted{CUDA: true, Number: i, Visible: ptr("7,6,5,4,3,2,1,0")})
		gpu := 7 - i
		if err != nil || p.GPU != m.GPUs[gpu].Label() || p.Node != gpu/4 || p.RDMA != m.NICs[gpu].RDMA || p.Distance != PIX {
			t.Errorf("worker %d: %+v, %v", i, p, err)
		}
		if want := m.Nodes[gpu/4].CPUs; p.CPUs.String() != want.String() {
			t.Errorf("worker %d: CPUs %s, want %s", i, p.CPUs, want)
		}
	}
}

// TestFewerNICs: GPUs that have the same NICs to choose from take turns, and a NIC
// without a link is left out while another has one.
func TestFewerNICs(t *testing.T) {
	root, driver := eightGPUs(sockets)
	for _, i := range []int{1, 2, 5, 6} { // one is left under each host bridge
		_, nic := pairWay(i)
		root.write("sys/devices/"+nic+"/infiniband/"+"mlx5_"+string(rune('0'+i))+"/ports/1/state", "1: DOWN")
	}
	m := mustRead(t, root, driver)
	got := map[string]int{}
	for i := range 8 {
		p, err := m.Assign(Wanted{CUDA: true, Number: i})
		if err != nil || p.Distance > PXB {
			t.Errorf("GPU %d: %+v, %v", i, p, err)
		}
		got[p.RDMA]++
	}
	if len(got) != 4 || got["mlx5_0"] != 2 || got["mlx5_3"] != 2 || got["mlx5_4"] != 2 || got["mlx5_7"] != 2 {
		t.Errorf("by NIC: %v", got)
	}
	root, driver = eightGPUs(func(int) int { return Unknown }) // GPU 0's own NIC is gone: all others are as far
	_, nic := pairWay(0)
	root.write("sys/devices/"+nic+"/infiniband/mlx5_0/ports/1/state", "1: DOWN")
	_, nic = pairWay(1)
	root.write("sys/devices/"+nic+"/infiniband/mlx5_1/ports/1/state", "1: DOWN")
	m = mustRead(t, root, driver)
	first, _ := m.Assign(Wanted{CUDA: true, Number: 0})
	second, _ := m.Assign(Wanted{CUDA: true, Number: 1})
	if first.RDMA != "mlx5_2" || second.RDMA != "mlx5_3" || first.Distance != SYS {
		t.Errorf("%+v and %+v", first, second)
	}
	for i := range 8 {
		_, nic := pairWay(i)
		root.write("sys/devices/"+nic+"/infiniband/"+m.NICs[i].RDMA+"/ports/1/state", "1: DOWN")
	}
	if p, _ := mustRead(t, root, driver).Assign(Wanted{CUDA: true, Number: 4}); p.RDMA != "mlx5_4" || !strings.Contains(p.Reasons(), "link is down") {
		t.Errorf("all down: %+v", p)
	}
}

// TestAllowedCPUs: what a control group or an affinity leaves.
func TestAllowedCPUs(t *testing.T) {
	root, driver := eightGPUs(sockets)
	for _, c := range []struct{ cpus, nodes, want, why string }{
		{"0-191", "0-1", "48-95,144-191", "it keeps to those of the node"},
		{"40-59", "0-1", "48-59", "it keeps to those of the node"},
		{"48-59", "1", "", "CPUs of that node only"},
		{"0-7", "0", "", "none of which is next to GPU6"},
		{"0-7", "0", "", "may not have memory of node 1"},
	} {
		root.allow(c.cpus, c.nodes)
		p, err := mustRead(t, root, driver).Assign(Wanted{CUDA: true, Number: 6})
		if err != nil || p.Node != 1 || p.CPUs.String() != c.want || !strings.Contains(p.Reasons(), c.why) {
			t.Errorf("CPUs %s, nodes %s: %+v, %v", c.cpus, c.nodes, p, err)
		}
	}
	delete(root.MapFS, "proc/self/status")
	if p, _ := mustRead(t, root, driver).Assign(Wanted{CUDA: true, Number: 6}); p.CPUs.String() != "48-95,144-191" {
		t.Errorf("not told what is allowed: %+v", p)
	}
}

// TestHostWorker: a worker for the host's memory is placed where it may run.
func TestHostWorker(t *testing.T) {
	root, driver := eightGPUs(sockets)
	for cpus, node := range map[string]int{"0-191": Unknown, "0-3": 0, "144-150": 1, "47-48": Unknown} {
		root.allow(cpus, "0-1")
		p, err := mustRead(t, root, driver).Assign(Wanted{Number: 2})
		if err != nil || p.Node != node || p.CPUs != nil || len(p.Why) == 0 {
			t.Errorf("CPUs %s: %+v, %v, want node %d", cpus, p, err, node)
		}
		if node == 1 && (p.RDMA != "mlx5_6" || p.Distance != NODE) {
			t.Errorf("RDMA device of the third on node 1: %+v", p)
		}
	}
	one := newTree()
	one.node(0, "0-1", 16, "10")
	one.allow("0-1", "0")
	if p, err := mustRead(t, one, gpus{err: ErrNoDriver}).Assign(Wanted{}); err != nil || p.Node != 0 || p.RDMA != "" {
		t.Errorf("one node: %+v, %v", p, err)
	}
}

func TestNoSuchDevice(t *testing.T) {
	root, driver := eightGPUs(sockets)
	m := mustRead(t, root, driver)
	for _, c := range []struct {
		wanted Wanted
		part   string
	}{
		{Wanted{CUDA: true, Number: 8}, "CUDA shows 8 here"},
		{Wanted{CUDA: true, Number: -1}, "cuda--1"},
		{Wanted{CUDA: true, Number: 1, Visible: ptr("3")}, "CUDA shows 1 here"},
		{Wanted{CUDA: true, Number: 1, Visible: ptr("3,9")}, "there are 8 GPUs"},
		{Wanted{CUDA: true, Number: 0, Visible: ptr("")}, "CUDA_VISIBLE_DEVICES is empty"},
	} {
		if p, err := m.Assign(c.wanted); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%+v: %+v, %v, want %q", c.wanted, p, err, c.part)
		}
	}
}

// TestMixedGPUs: CUDA numbers GPUs of several models by speed, unless told.
func TestMixedGPUs(t *testing.T) {
	root, driver := eightGPUs(sockets)
	driver.all[1].Name = "NVIDIA L4"
	m := mustRead(t, root, driver)
	for order, doubt := range map[string]bool{"": true, "FASTEST_FIRST": true, "PCI_BUS_ID": false} {
		p, err := m.Assign(Wanted{CUDA: true, Number: 0, Order: order})
		if err != nil || strings.Contains(p.Reasons(), "may be wrong") != doubt {
			t.Errorf("order %q: %q, %v", order, p.Why, err)
		}
	}
}
