package cudadev

import (
	"errors"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// Kinds of a region.
const (
	KindIPC = "cuda_ipc"
	KindVMM = "cuda_vmm"
	// KindFabric is memory of chunks with fabric handles: what a GPU's memory can be
	// shared by on machines that share it with others.
	KindFabric = "cuda_fabric"
)

var (
	// ErrRegion reports a region that can't be reached as it was described.
	ErrRegion = errors.New("KV region")
	// ErrLost reports a GPU, or the driver's context for it, that is of no use any
	// more in this process.
	ErrLost = errors.New("the GPU's context is lost")
	// ErrOtherGPU reports a registration for a second GPU.
	ErrOtherGPU = errors.New("a worker serves one GPU")

	errNoEvent = errors.New("the engine registered no such event")
)

// Way is how bytes are copied.
type Way uint8

// Ways.
const (
	Measured Way = iota // whichever is faster
	ByKernel
	ByEngine // the GPU's copy engines
)

// String implements fmt.Stringer.
func (w Way) String() string {
	switch w {
	case ByKernel:
		return "kernel"
	case ByEngine:
		return "copy engine"
	case Measured:
	}
	return "measured"
}

// Config of a Device. The zero value works.
type Config struct {
	// Library is the driver's; empty: cuda.LibraryName.
	Library string
	// Way is how to copy.
	Way Way
	// LaunchBytes is what is enqueued between two looks at the job; default 4 MiB.
	LaunchBytes int
	// StepBytes of the store's memory are registered at a time; default 1 GiB.
	StepBytes uint64
	// Background runs work that nobody waits for, at a low priority; nil: like any
	// other.
	Background func(work func())
	// Cores bounds the cores that sum a load's bytes; default 4.
	Cores int
	// OnLost, when not nil, is told once that the context is lost: only another
	// process can use the GPU again.
	OnLost func(error)
	Log    *slog.Logger

	// broken is for tests of what the waits are for.
	broken struct{ await, finish bool }
}

func (c *Config) setDefaults() {
	if c.Library == "" {
		c.Library = cuda.LibraryName
	}
	if c.LaunchBytes <= 0 {
		c.LaunchBytes = 4 << 20
	}
	if c.StepBytes == 0 {
		c.StepBytes = 1 << 30
	}
	if c.Background == nil {
		c.Background = func(work func()) { work() }
	}
	if c.Cores <= 0 {
		c.Cores = 4
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

var (
	_ worker.Device       = (*Device)(nil)
	_ worker.SizedMapping = (*mapping)(nil)
	_ worker.EventMapping = (*mapping)(nil)
)
