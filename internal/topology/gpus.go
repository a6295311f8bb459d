package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// ErrNoDriver: there is no GPU driver to ask.
var ErrNoDriver = errors.New("topology: no GPU driver")

// maxGPUs bounds what a driver may name; NVML itself stops far below.
const maxGPUs = 1024

// DriverGPU is what a GPU's driver knows of it.
type DriverGPU struct {
	Name, UUID string
	Address    Address
	// Node is next to the GPU, Unknown when the driver does not say.
	Node int
	// MIG are its parts that can be used by themselves.
	MIG []MIG
}

// MIG is a part of a GPU that CUDA shows as a device.
type MIG struct {
	UUID            string `json:"uuid"`
	GPUInstance     int    `json:"gpu_instance"`
	ComputeInstance int    `json:"compute_instance"`
}

// Driver lists the GPUs. See internal/gpu for the real one.
type Driver interface {
	// GPUs returns all GPUs that the process may see, in the order of their PCI
	// addresses. It returns ErrNoDriver where there is none.
	GPUs() ([]DriverGPU, error)
}

// GPU is one GPU.
type GPU struct {
	// Index is its number in nvidia-smi and, with CUDA_DEVICE_ORDER=PCI_BUS_ID, in
	// CUDA.
	Index int    `json:"index"`
	Name  string `json:"name,omitempty"`
	// UUID is empty when neither NVML nor the kernel module tells.
	UUID string `json:"uuid,omitempty"`
	Location
	MIG []MIG `json:"mig,omitempty"`
}

// Label names the GPU in tables: GPU0.
func (g *GPU) Label() string { return "GPU" + strconv.Itoa(g.Index) }

// gpusOf adds to what the driver says what sysfs does.
func gpusOf(root fs.FS, driver []DriverGPU) ([]GPU, error) {
	if len(driver) > maxGPUs {
		return nil, fmt.Errorf("%w: the driver names %d GPUs, at most %d are believed", ErrText, len(driver), maxGPUs)
	}
	gpus := make([]GPU, 0, len(driver))
	for i, d := range driver {
		at, err := locate(root, d.Address)
		if err != nil {
			return nil, err
		}
		if at.Node == Unknown && d.Node != Unknown {
			at.Node, at.NodeFrom = d.Node, FromDriver
		}
		gpus = append(gpus, GPU{Index: i, Name: d.Name, UUID: d.UUID, Location: at, MIG: d.MIG})
	}
	return gpus, nil
}

// The only vendor whose GPUs vLLM's CUDA builds use, and PCI's class of display
// controllers. A server's management chip is one of these too, so that the
// vendor is looked at.
const (
	vendorNVIDIA = 0x10de
	classDisplay = 0x03
)

// procDir has a directory for each GPU that NVIDIA's kernel module serves.
const procDir = "proc/driver/nvidia/gpus"

// sysfsGPUs lists the GPUs that PCI knows, for where NVML does not answer. Their
// UUIDs are known where the kernel module is loaded; their MIG parts are not.
func sysfsGPUs(root fs.FS) ([]DriverGPU, error) {
	names, err := list(root, pciDir)
	if err != nil {
		return nil, err
	}
	var gpus []DriverGPU
	for _, name := range names {
		address, err := ParseAddress(name)
		if err != nil {
			continue
		}
		dir := pciDir + "/" + name
		class, there, err := readHex(root, dir+"/class")
		if err != nil {
			return nil, err
		}
		if !there || class>>16 != classDisplay {
			continue
		}
		vendor, _, err := readHex(root, dir+"/vendor")
		if err != nil {
			return nil, err
		}
		device, _, err := readHex(root, dir+"/device")
		if err != nil {
			return nil, err
		}
		if vendor != vendorNVIDIA || len(gpus) == maxGPUs {
			continue
		}
		gpu := DriverGPU{Name: fmt.Sprintf("NVIDIA %04x", device), Address: address, Node: Unknown}
		text, _, err := readText(root, procDir+"/"+string(address)+"/information")
		if err != nil {
			return nil, err
		}
		gpu.parseInformation(text)
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

// parseInformation takes what the kernel's driver says of a GPU in procfs: lines
// "Model: NVIDIA H100" and "GPU UUID: GPU-...".
func (g *DriverGPU) parseInformation(text string) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); len(value) > 96 {
			continue
		}
		switch key {
		case "Model":
			g.Name = value
		case "GPU UUID":
			if strings.HasPrefix(value, "GPU-") && !strings.Contains(value, "?") { // unknown until the GPU is first used
				g.UUID = value
			}
		}
	}
}
