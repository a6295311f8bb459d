//go:build !(cgo && linux && (amd64 || arm64)) || nonvml

package gpu

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// Driver is NVML; this build has none.
type Driver struct{}

// New returns the driver.
func New() *Driver { return &Driver{} }

// GPUs implements topology.Driver.
func (*Driver) GPUs() ([]topology.DriverGPU, error) {
	return nil, fmt.Errorf("%w: built without NVML", topology.ErrNoDriver)
}
