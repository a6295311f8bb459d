package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNoDevice: CUDA would not have such a device.
var ErrNoDevice = errors.New("no such CUDA device")

// maxVisibleBytes bounds CUDA_VISIBLE_DEVICES; a name has some 40 bytes.
const maxVisibleBytes = 64 << 10

// cudaDevice is one that CUDA shows to a process.
type cudaDevice struct {
	gpu *GPU
	// mig is the part that the device is, nil for the GPU itself.
	mig *MIG
}

// cudaDevices lists the devices that CUDA shows to a process, in the order of its
// numbers, by the rules for CUDA_VISIBLE_DEVICES: a comma-separated list of
// numbers, UUIDs or their beginnings, and names of MIG devices. The first name
// that is none ends the list; why says which, and is nil when all are. visible is
// nil when the variable is not set.
func cudaDevices(gpus []GPU, visible *string) (devices []cudaDevice, why error) {
	if visible == nil {
		for i := range gpus {
			devices = append(devices, cudaDevice{gpu: &gpus[i]})
		}
		return devices, nil
	}
	if len(*visible) > maxVisibleBytes {
		return nil, fmt.Errorf("%w: CUDA_VISIBLE_DEVICES has %d bytes", ErrText, len(*visible))
	}
	if strings.TrimSpace(*visible) == "" {
		return nil, fmt.Errorf("%w: CUDA_VISIBLE_DEVICES is empty", ErrNoDevice)
	}
	for name := range strings.SplitSeq(*visible, ",") {
		device, err := findDevice(gpus, strings.TrimSpace(name))
		if err != nil {
			return devices, err
		}
		for _, before := range devices {
			if before == device {
				return nil, fmt.Errorf("%w: CUDA_VISIBLE_DEVICES names %.60q twice, and CUDA shows none then", ErrNoDevice, name)
			}
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// findDevice finds what one entry of CUDA_VISIBLE_DEVICES names.
func findDevice(gpus []GPU, name string) (cudaDevice, error) {
	switch {
	case strings.HasPrefix(name, "MIG-GPU-"):
		return findOldMIG(gpus, name)
	case strings.HasPrefix(name, "MIG-"):
		return only(name, gpus, func(yield func(cudaDevice, string)) {
			for i := range gpus {
				for j := range gpus[i].MIG {
					yield(cudaDevice{&gpus[i], &gpus[i].MIG[j]}, gpus[i].MIG[j].UUID)
				}
			}
		})
	case strings.HasPrefix(name, "GPU-"):
		return only(name, gpus, func(yield func(cudaDevice, string)) {
			for i := range gpus {
				yield(cudaDevice{gpu: &gpus[i]}, gpus[i].UUID)
			}
		})
	}
	n, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		return cudaDevice{}, fmt.Errorf("%w: %.60q in CUDA_VISIBLE_DEVICES; want a number, GPU-<uuid> or MIG-<uuid>", ErrNoDevice, name)
	}
	if n >= uint64(len(gpus)) {
		return cudaDevice{}, fmt.Errorf("%w: %d in CUDA_VISIBLE_DEVICES; there are %d GPUs", ErrNoDevice, n, len(gpus))
	}
	return cudaDevice{gpu: &gpus[n]}, nil
}

// only finds the one device whose UUID begins with name. A name that several have
// is none, as for CUDA.
func only(name string, gpus []GPU, each func(yield func(device cudaDevice, uuid string))) (cudaDevice, error) {
	var found cudaDevice
	matches, named := 0, false
	each(func(device cudaDevice, uuid string) {
		named = named || uuid != ""
		if strings.HasPrefix(uuid, name) {
			found, matches = device, matches+1
		}
	})
	switch {
	case matches == 1:
		return found, nil
	case matches > 1:
		return cudaDevice{}, fmt.Errorf("%w: %d have UUIDs that begin with %.60q", ErrNoDevice, matches, name)
	case !named && len(gpus) > 0:
		return cudaDevice{}, fmt.Errorf("%w: %.60q can't be looked up: the GPU driver does not tell UUIDs here", ErrNoDevice, name)
	}
	return cudaDevice{}, fmt.Errorf("%w: none here has the UUID %.60q", ErrNoDevice, name)
}

// findOldMIG finds MIG-GPU-<uuid>/<GPU instance>/<compute instance>, the form of
// drivers before 470.
func findOldMIG(gpus []GPU, name string) (cudaDevice, error) {
	parts := strings.Split(strings.TrimPrefix(name, "MIG-"), "/")
	if len(parts) != 3 {
		return cudaDevice{}, fmt.Errorf("%w: %.60q; want MIG-GPU-<uuid>/<GPU instance>/<compute instance>", ErrNoDevice, name)
	}
	for i := range gpus {
		if gpus[i].UUID != parts[0] {
			continue
		}
		for j := range gpus[i].MIG {
			mig := &gpus[i].MIG[j]
			if strconv.Itoa(mig.GPUInstance) == parts[1] && strconv.Itoa(mig.ComputeInstance) == parts[2] {
				return cudaDevice{&gpus[i], mig}, nil
			}
		}
	}
	return cudaDevice{}, fmt.Errorf("%w: none here has the name %.60q", ErrNoDevice, name)
}
