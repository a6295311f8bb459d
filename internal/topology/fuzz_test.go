package topology

import (
	"slices"
	"strings"
	"testing"
)

// FuzzTexts: no text of sysfs or of the environment makes a parser fail otherwise
// than by its error, and what is read can be written and read again.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{
		"0-3,8", "0-65535", "10 21", "Node 0 MemTotal: 24684096 kB\nNode 0 MemFree: 1 kB", "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0",
		"0000:3b:00.0", "00000000:3B:00.0", "400 Gb/sec (4X NDR)", "mlx5_10", "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
		"Model: NVIDIA H100\nGPU UUID: GPU-1", "GPU-00000001,MIG-aaaa-1,2", "MIG-GPU-00000007-1111/1/0", "NaN Gb/sec", "-1",
	} {
		f.Add(text)
	}
	root, driver := eightGPUs(sockets)
	driver.all[7].MIG = []MIG{{UUID: "MIG-aaaa-1", GPUInstance: 1}}
	m, err := Read(root, driver)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if set, err := ParseSet(text); err == nil {
			again, err := ParseSet(set.String())
			if err != nil || !slices.Equal(again, set) || !slices.IsSorted(set) || len(set) > maxSetNumber+1 {
				t.Errorf("%q: %v, then %v, %v", text, set, again, err)
			}
		}
		if address, err := ParseAddress(text); err == nil {
			if again, err := ParseAddress(string(address)); err != nil || again != address {
				t.Errorf("%q: %q, then %q, %v", text, address, again, err)
			}
		}
		if rate, err := parseRate(text); err == nil && !(rate >= 0) {
			t.Errorf("%q: rate %v", text, rate)
		}
		if row, err := parseDistances(text, len(strings.Fields(text))); err == nil && len(row) != len(strings.Fields(text)) {
			t.Errorf("%q: row %v", text, row)
		}
		if node := new(Node); node.parseMemory(text) == nil && node.CacheBytes > 1<<60 {
			t.Errorf("%q: %+v", text, node)
		}
		if allowed, err := parseAllowance(text); err == nil && !slices.IsSorted(allowed.CPUs) {
			t.Errorf("%q: %+v", text, allowed)
		}
		if host, bridges := parsePath(text); host == "" && bridges != nil || len(bridges) > maxBridges {
			t.Errorf("%q: %q, %v", text, host, bridges)
		}
		new(DriverGPU).parseInformation(text)
		if word := printable(text); strings.ContainsAny(word, " \n\t") || len(word) > 32 {
			t.Errorf("%q: %q", text, word)
		}
		if a, b := compareNames(text, "mlx5_1"), compareNames("mlx5_1", text); (a < 0) != (b > 0) {
			t.Errorf("%q: %d and %d", text, a, b)
		}
		devices, why := cudaDevices(m.GPUs, &text)
		if why == nil && len(devices) == 0 || len(devices) > 9 {
			t.Errorf("%q: %d devices, %v", text, len(devices), why)
		}
	})
}
