package cudadev

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// Device maps KV caches in the memory of a GPU. It is safe for concurrent use.
type Device struct {
	cfg   Config
	pool  *Pool
	stats counters

	mu       sync.Mutex
	driver   *cuda.Driver // nil before the first Map; guarded by mu
	gpu      *gpu         // nil while nothing is mapped; guarded by mu
	mappings int          // of gpu; guarded by mu
	// leaving is closed when the GPU of engines that have gone is given back; nil:
	// there is none. Guarded by mu.
	leaving chan struct{}
}

// New returns the device. Neither the driver nor a GPU is touched before Map.
func New(cfg Config, pool *Pool) *Device {
	cfg.setDefaults()
	return &Device{cfg: cfg, pool: pool}
}

// Probe reports whether there is a driver, and what GPUs it shows.
func (d *Device) Probe() ([]cuda.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.openLocked(); err != nil {
		return nil, err
	}
	return d.driver.Devices()
}

func (d *Device) openLocked() (err error) {
	if d.driver == nil {
		d.driver, err = cuda.Open(d.cfg.Library)
	}
	return err
}

// Map implements worker.Device.
func (d *Device) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := d.register(pid, reg, fds)
	if err != nil {
		d.stats.refused.Add(1)
		return nil, err
	}
	return m, nil
}

func (d *Device) register(pid int, reg *connector.Register, fds []int) (*mapping, error) {
	defer closeAll(fds)
	if err := reg.CheckGeometry(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRegion, err)
	}
	g, err := d.acquire(reg.DeviceUUID)
	if err != nil {
		return nil, err
	}
	m := &mapping{
		device: d, gpu: g, held: reg.Held(), shards: make([][]segment, len(reg.Namespace.Groups)*reg.Held()),
	}
	if err := m.open(reg, fds); err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	m.choose()
	m.count(1)
	m.batches.Start(d.cfg.Background) // of low priority: nobody waits for stores
	d.cfg.Log.Info("the engine's GPU memory is mapped", "pid", pid, "gpu", g.name, "uuid", hex.EncodeToString(g.uuid[:]), "driver", g.version,
		"allocations", len(m.allocations), "segments", len(reg.Segments), "events", len(m.ring), "stores_by", m.ways[0].String(), "loads_by", m.ways[1].String())
	return m, nil
}

// acquire returns the GPU of that name, for one mapping.
func (d *Device) acquire(wanted []byte) (*gpu, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.awaitLocked()
	if len(wanted) != len(cuda.UUID{}) {
		return nil, fmt.Errorf("%w: the registration names no GPU (device_uuid has %d bytes)", ErrRegion, len(wanted))
	}
	if d.gpu != nil {
		if err := d.gpu.lost(); err != nil {
			return nil, err
		}
		if d.gpu.uuid != cuda.UUID(wanted) {
			return nil, fmt.Errorf("%w: this one has an engine on GPU %x, the registration is for %x; start another worker, with a device cuda-N of its own", ErrOtherGPU, d.gpu.uuid, wanted)
		}
		d.mappings++
		return d.gpu, nil
	}
	if err := d.openLocked(); err != nil {
		return nil, err
	}
	device, err := d.findLocked(cuda.UUID(wanted))
	if err != nil {
		return nil, err
	}
	g, err := openGPU(&d.cfg, &d.stats, d.driver, device, d.pool)
	if err != nil {
		return nil, fmt.Errorf("GPU %s (%x): %w", device.Name, wanted, err)
	}
	d.gpu, d.mappings = g, 1
	return g, nil
}

func (d *Device) findLocked(wanted cuda.UUID) (cuda.Device, error) {
	devices, err := d.driver.Devices()
	if err != nil {
		return cuda.Device{}, err
	}
	var seen []string
	for _, device := range devices {
		if device.UUID == wanted {
			return device, nil
		}
		seen = append(seen, hex.EncodeToString(device.UUID[:]))
	}
	return cuda.Device{}, fmt.Errorf("%w: %x; this process sees %s (CUDA_VISIBLE_DEVICES, and the GPUs of the container)", cuda.ErrNoDevice, wanted, strings.Join(seen, ", "))
}

// release gives a mapping's hold of the GPU back. The last ends the context, beside
// the caller: to give the store's memory back to the driver takes it long, and the
// engine waits for its own to be unmapped, not for that.
func (d *Device) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mappings--; d.mappings > 0 {
		return
	}
	g, leaving := d.gpu, make(chan struct{})
	d.gpu, d.leaving = nil, leaving
	go func() {
		defer close(leaving)
		d.cfg.Log.Info("no engine is on the GPU: its context is given back", "since_start", d.Stats())
		if err := g.close(); err != nil {
			d.cfg.Log.Warn("give the GPU back", "error", err)
		}
	}()
}

// awaitLocked waits until the GPU of engines that have gone is given back. It gives
// mu up meanwhile.
func (d *Device) awaitLocked() {
	for d.leaving != nil {
		leaving := d.leaving
		d.mu.Unlock()
		<-leaving
		d.mu.Lock()
		if d.leaving == leaving {
			d.leaving = nil
		}
	}
}

// Close waits until the GPU of engines that have gone is given back.
//
// REQUIRES: nothing is mapped, nor will be.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.awaitLocked()
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd) // Linux frees the number whatever it says
		}
	}
}
