package daemon

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/gpu"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// Topology reads the machine: sysfs, and the GPU driver.
func Topology() (*topology.Machine, error) { return topology.Read(os.DirFS("/"), gpu.New()) }

// WantedBy names the device of a worker that runs in this environment.
func WantedBy(cfg *config.WorkerConfig, env func(name string) (string, bool)) topology.Wanted {
	w := topology.Wanted{CUDA: cfg.DeviceKind() == "cuda", Number: cfg.DeviceNumber()}
	if visible, set := env("CUDA_VISIBLE_DEVICES"); set {
		w.Visible = &visible
	}
	w.Order, _ = env("CUDA_DEVICE_ORDER")
	return w
}

// noGPUs stands in for the driver where no GPU is wanted: it can take seconds.
type noGPUs struct{}

// GPUs implements topology.Driver.
func (noGPUs) GPUs() ([]topology.DriverGPU, error) { return nil, topology.ErrNoDriver }

// placing is what it takes to place a worker.
type placing struct {
	root   fs.FS
	driver topology.Driver
	env    func(name string) (string, bool)
	// setAffinity keeps all threads of the process to some CPUs.
	setAffinity func(cpus []int) error
	log         *slog.Logger
}

// placeWorker puts the worker next to its device.
func placeWorker(cfg *config.WorkerConfig, log *slog.Logger) {
	p := placing{root: os.DirFS("/"), driver: noGPUs{}, env: os.LookupEnv, setAffinity: keepTo, log: log}
	if cfg.DeviceKind() == "cuda" {
		p.driver = gpu.New()
	}
	p.place(cfg)
}

// place keeps the worker's threads to the cores next to its device, and says what
// else belongs to it. None of it is needed to run: what fails is a log line.
func (p *placing) place(cfg *config.WorkerConfig) {
	machine, err := topology.Read(p.root, p.driver)
	if err != nil {
		p.log.Warn("the machine's topology can't be read; the worker's threads stay where they are", "error", err)
		return
	}
	for _, note := range machine.Notes {
		p.log.Info("topology", "note", note)
	}
	placement, err := machine.Assign(WantedBy(cfg, p.env))
	if err != nil {
		p.log.Warn("what is next to the worker's device is not known; its threads stay where they are", "device", cfg.Device, "error", err)
		return
	}
	threads := "as they are"
	switch {
	case placement.CPUs == nil:
	case cfg.Affinity == config.AffinityOff:
		threads += " (affinity: off)"
	default:
		if err := p.setAffinity(placement.CPUs); err != nil {
			p.log.Warn("the worker's threads stay where they are", "wanted", placement.CPUs.String(), "error", err)
			break
		}
		threads = "CPUs " + placement.CPUs.String()
	}
	p.log.Info("next to the worker's device", "device", cfg.Device, "gpu", placement.GPU, "numa_node", placement.Node, "rdma_device", placement.RDMA,
		"threads", threads, "why", placement.Reasons())
}

// keepTo also lets Go count its processors anew, unless the environment says how
// many there are.
func keepTo(cpus []int) error {
	if err := proc.SetAffinity(cpus); err != nil {
		return fmt.Errorf("keep the threads to the device's cores: %w", err)
	}
	if _, said := os.LookupEnv("GOMAXPROCS"); !said {
		runtime.SetDefaultGOMAXPROCS()
	}
	return nil
}
