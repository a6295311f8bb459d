package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/cudadev"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
)

// Kinds of devices, in their names and in registrations.
const (
	kindHost = "host"
	kindCUDA = "cuda"
)

// lossPatience is what a worker that has lost its GPU has to end by itself.
const lossPatience = 5 * time.Second

// lastResort returns what kills this process lossPatience after Reset, unless it is
// stopped. Where nobody can tell whether the GPU still copies, the sessions wait for
// just that, and with them the worker's end: but the engines wait for its death.
func lastResort(log *slog.Logger) *time.Timer {
	t := time.AfterFunc(lossPatience, func() {
		log.Error("the worker can't end without its GPU: killing it, which ends what the GPU does")
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // nothing forbids that
	})
	t.Stop()
	return t
}

// cudaDevice returns the device of a worker for a GPU. A machine without a driver
// is no reason not to start: engines that register hear of it.
func cudaDevice(pool *cudadev.Pool, background func(work func()), cores int, lost func(error), log *slog.Logger) *cudadev.Device {
	const mostCores = 4 // they keep up with a bus
	device := cudadev.New(cudadev.Config{
		Background: background, Cores: min(cores, mostCores), Log: log,
		OnLost: func(err error) { lost(fmt.Errorf("%w; another process can use it", err)) },
	}, pool)
	gpus, err := device.Probe()
	if err != nil {
		log.Warn("no GPU can be used: engines will be refused", "error", err)
		return device
	}
	names := make([]string, len(gpus))
	for i := range gpus {
		names[i] = fmt.Sprintf("%s (%x)", gpus[i].Name, gpus[i].UUID)
	}
	log.Info("GPUs that this worker sees", "gpus", names)
	return device
}

// gpuFigures returns a device's figures as metrics are made of them.
func gpuFigures(device *cudadev.Device) metrics.GPU {
	s := device.Stats()
	g := metrics.GPU{
		MappedBytes: s.MappedBytes, StoreBytes: s.StoreBytes, RegisteredBytes: s.RegisteredBytes, RefusedBytes: s.UnregisteredBytes,
		BufferedBytes: s.BufferedBytes, Waits: s.Waits, Waited: s.Waited, Fenced: s.Fenced, Refused: s.Refused, Failed: s.Failed, Lost: s.Lost,
	}
	for way, label := range map[cudadev.Way]string{cudadev.ByKernel: "kernel", cudadev.ByEngine: "copy_engine"} {
		for load, flows := range map[bool]*[cudadev.Ways]cudadev.Flow{false: &s.Stores, true: &s.Loads} {
			f := flows[way]
			g.Flows = append(g.Flows, metrics.GPUFlow{Load: load, Way: label, Launches: f.Launches, Bytes: f.Bytes, Caches: f.Caches})
		}
	}
	return g
}

// pooledSegment is a store segment whose data a GPU may be made to reach.
type pooledSegment struct {
	*shm.Segment
	pool *cudadev.Pool
	data []byte
}

// pooled tells the pool of a segment. Its tables are left out: they take memory as
// they fill.
func pooled(segment *shm.Segment, pool *cudadev.Pool) client.Mapping {
	mem := segment.Bytes()
	layout, err := embedded.ReadLayout(mem, uint64(len(mem)))
	if err != nil || layout.DataOffset >= uint64(len(mem)) {
		return segment // none of ours; the client says so
	}
	data := mem[layout.DataOffset:]
	pool.Add(data, func() (uint64, bool) {
		n, all := embedded.PreparedBytes(mem)
		return n - min(n, layout.DataOffset), all
	})
	return &pooledSegment{Segment: segment, pool: pool, data: data}
}

// Close implements client.Mapping.
func (s *pooledSegment) Close() error {
	s.pool.Remove(s.data)
	return s.Segment.Close()
}
