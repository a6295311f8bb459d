//go:build cgo && linux && (amd64 || arm64) && !nonvml

package gpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// TestFakeLibrary goes the whole way: dlopen, slots, go-nvml, and a function that
// the library does not have.
func TestFakeLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", path, "testdata/fake_nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	driver := fromLibrary(path)
	for range 2 { // NVML is initialised and ended each time
		gpus, err := driver.GPUs()
		if err != nil || len(gpus) != 8 {
			t.Fatalf("%+v, %v", gpus, err)
		}
		for i, g := range gpus {
			if g.Node != topology.Unknown || g.Name != "NVIDIA Fake 80GB" || (i < 7) != (g.MIG == nil) {
				t.Errorf("GPU %d: %+v", i, g)
			}
		}
		if g := gpus[3]; g.UUID != "GPU-00000003-aaaa" || g.Address != "0000:1d:00.0" {
			t.Errorf("GPU 3: %+v", g)
		}
		parts := gpus[7].MIG
		if len(parts) != 2 || parts[1] != (topology.MIG{UUID: "MIG-00000007-bbbb-3", GPUInstance: 13}) {
			t.Errorf("parts: %+v", parts)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none.so"), "libm.so.6"} {
		if gpus, err := fromLibrary(path).GPUs(); !errors.Is(err, topology.ErrNoDriver) {
			t.Errorf("%s: %+v, %v, want ErrNoDriver", path, gpus, err)
		}
	}
}

// fake is an NVML with one GPU whose answers a test changes.
func fake(change func(*mock.Interface, *mock.Device)) *Driver {
	device := &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetNameFunc: func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			info := nvml.PciInfo{}
			copy(info.BusId[:], "00000001:3B:00.0")
			return info, nvml.SUCCESS
		},
		GetMemoryAffinityFunc: func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return []uint{0, 0}, nvml.ERROR_NOT_SUPPORTED },
		GetMigModeFunc:        func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
	}
	library := &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return device, nvml.SUCCESS },
	}
	change(library, device)
	return &Driver{open: func() (nvml.Interface, error) { return library, nil }}
}

func TestAnswers(t *testing.T) {
	gpus, err := fake(func(_ *mock.Interface, d *mock.Device) {
		d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return []uint{0, 1 << 2}, nvml.SUCCESS }
	}).GPUs()
	if err != nil || len(gpus) != 1 || gpus[0].Address != "0001:3b:00.0" || gpus[0].Node != 66 {
		t.Errorf("%+v, %v", gpus, err)
	}
	for _, words := range [][]uint{{0}, {3}, {1, 1}} { // none, or several
		gpus, err := fake(func(_ *mock.Interface, d *mock.Device) {
			d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return words, nvml.SUCCESS }
		}).GPUs()
		if err != nil || gpus[0].Node != topology.Unknown {
			t.Errorf("%v: %+v, %v", words, gpus, err)
		}
	}
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*mock.Interface, *mock.Device)
		noDriver bool
	}{
		"driver not loaded": {func(l *mock.Interface, _ *mock.Device) {
			l.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
		}, true},
		"versions differ": {func(l *mock.Interface, _ *mock.Device) {
			l.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
		}, false},
		"a GPU is lost": {func(l *mock.Interface, _ *mock.Device) {
			l.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
		}, false},
		"no UUID": {func(_ *mock.Interface, d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
		}, false},
		"bad address": {func(_ *mock.Interface, d *mock.Device) {
			d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.SUCCESS }
		}, false},
	} {
		gpus, err := fake(c.change).GPUs()
		if err == nil || errors.Is(err, topology.ErrNoDriver) != c.noDriver {
			t.Errorf("%s: %+v, %v", name, gpus, err)
		}
	}
}
