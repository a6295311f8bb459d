//go:build cgo && linux && (amd64 || arm64) && !nonvml

package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

const (
	libraryName = "libnvidia-ml.so.1"
	// maxMIG bounds the parts of a GPU that are asked for; seven is the most today.
	maxMIG = 64
	// maxNodes is how many NUMA nodes a GPU may be next to, by their numbers.
	maxNodes = 64
)

// Driver is NVML.
type Driver struct {
	// open returns the library, its functions resolved.
	open func() (nvml.Interface, error)

	mu    sync.Mutex
	asked *question // under way; guarded by mu
}

// question is asked in a goroutine of its own, as the library's calls can't be
// interrupted.
type question struct {
	done chan struct{} // closed with the answer
	gpus []topology.DriverGPU
	err  error
}

// ErrSilent reports a driver that does not answer.
var ErrSilent = errors.New("the GPU driver does not answer")

// answerLimit is several times what a driver takes to wake eight GPUs that nobody
// used.
const answerLimit = 20 * time.Second

var _ topology.Driver = (*Driver)(nil)

// New returns the driver; nothing is loaded before it is asked.
func New() *Driver { return fromLibrary(libraryName) }

func fromLibrary(path string) *Driver {
	return &Driver{open: func() (nvml.Interface, error) {
		if err := resolve(path); err != nil {
			return nil, err
		}
		return nvml.New(nvml.WithLibraryPath(path)), nil
	}}
}

// GPUs implements topology.Driver. The driver may take seconds to wake GPUs that
// nobody used. A broken one may take for ever: the question is left behind then,
// with its thread, and who asks again waits for the answer to that one. (A child
// process that asks could be left behind as well, but no better be ended: a call
// that hangs does so in the kernel.)
func (d *Driver) GPUs() ([]topology.DriverGPU, error) {
	d.mu.Lock()
	q := d.asked
	if q == nil {
		q = &question{done: make(chan struct{})}
		d.asked = q
		go func() {
			q.gpus, q.err = d.ask()
			d.mu.Lock()
			defer d.mu.Unlock()
			d.asked = nil
			close(q.done)
		}()
	}
	d.mu.Unlock()
	timer := time.NewTimer(answerLimit)
	defer timer.Stop()
	select {
	case <-q.done:
		return q.gpus, q.err
	case <-timer.C:
		return nil, fmt.Errorf("%w within %v (NVML): does nvidia-smi answer? If not, the driver or a GPU is broken; the kernel's log (dmesg, NVRM) says more", ErrSilent, answerLimit)
	}
}

// ask asks the library.
func (d *Driver) ask() ([]topology.DriverGPU, error) {
	library, err := d.open()
	if err != nil {
		return nil, err
	}
	if ret := library.Init(); ret != nvml.SUCCESS {
		if ret == nvml.ERROR_DRIVER_NOT_LOADED || ret == nvml.ERROR_LIBRARY_NOT_FOUND {
			return nil, fmt.Errorf("%w: NVML says %s", topology.ErrNoDriver, ret.Error())
		}
		return nil, failed("init", ret)
	}
	defer func() { _ = library.Shutdown() }() // what it answers changes nothing
	count, ret := library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed("count GPUs", ret)
	}
	var gpus []topology.DriverGPU
	for i := range count {
		device, ret := library.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, failed(fmt.Sprintf("open GPU %d", i), ret)
		}
		gpu, err := read(device)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

func failed(what string, ret nvml.Return) error {
	return fmt.Errorf("NVML: %s: %w", what, ret)
}

// read asks for what every driver knows; the rest is left out where it is not
// supported.
func read(device nvml.Device) (topology.DriverGPU, error) {
	gpu := topology.DriverGPU{Node: topology.Unknown}
	var ret nvml.Return
	if gpu.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		return gpu, failed("ask for the UUID", ret)
	}
	pci, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return gpu, failed("ask for the PCI address", ret)
	}
	text, _, _ := bytes.Cut(pci.BusId[:], []byte{0})
	var err error
	if gpu.Address, err = topology.ParseAddress(string(text)); err != nil {
		return gpu, err
	}
	gpu.Name, _ = device.GetName() // for people only
	if nodes, ret := device.GetMemoryAffinity(maxNodes, nvml.AFFINITY_SCOPE_NODE); ret == nvml.SUCCESS {
		gpu.Node = onlyBit(nodes)
	}
	gpu.MIG = readMIG(device)
	return gpu, nil
}

// onlyBit returns the number of the one bit that is set, Unknown unless one is.
func onlyBit(words []uint) int {
	found := topology.Unknown
	for i, word := range words {
		if word == 0 {
			continue
		}
		if found != topology.Unknown || bits.OnesCount(word) != 1 {
			return topology.Unknown
		}
		found = i*bits.UintSize + bits.TrailingZeros(word)
	}
	return found
}

// readMIG lists the parts of a GPU that is divided. A number without a part is
// normal: parts come and go.
func readMIG(device nvml.Device) []topology.MIG {
	if mode, _, ret := device.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	count, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var parts []topology.MIG
	for i := range min(count, maxMIG) {
		part, ret := device.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := part.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		mig := topology.MIG{UUID: uuid, GPUInstance: topology.Unknown, ComputeInstance: topology.Unknown}
		if id, ret := part.GetGpuInstanceId(); ret == nvml.SUCCESS {
			mig.GPUInstance = id
		}
		if id, ret := part.GetComputeInstanceId(); ret == nvml.SUCCESS {
			mig.ComputeInstance = id
		}
		parts = append(parts, mig)
	}
	return parts
}
