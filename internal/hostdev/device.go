package hostdev

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// Kinds of a region.
const (
	KindMemfd     = "memfd"
	KindProcessVM = "process_vm"
)

// ErrRegion reports a region that can't be reached as it was described.
var ErrRegion = errors.New("KV region")

// Device maps KV caches in CPU memory. The zero value works.
type Device struct {
	// Background runs work that nobody waits for, at a low priority; nil: like any
	// other.
	Background func(work func())
	// Cores bounds the cores that a load's batch uses; 0: as many as Go uses.
	Cores int
}

var (
	_ worker.Device    = Device{}
	_ worker.GivingWay = (*mapping)(nil)
)

// Map implements worker.Device.
func (d Device) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	defer closeAll(fds)
	m := &mapping{copier: newCopier(), held: reg.Held(), shards: make([][]segment, len(reg.Namespace.Groups)*reg.Held()), lanes: min(cmp.Or(d.Cores, runtime.GOMAXPROCS(0)), maxLanes)}
	if err := m.open(pid, reg, fds); err != nil {
		_ = m.unmap() // the error that matters is err
		return nil, err
	}
	background := d.Background
	if background == nil {
		background = func(work func()) { work() }
	}
	m.start(background)
	return m, nil
}

func (m *mapping) open(pid int, reg *connector.Register, fds []int) error {
	if err := reg.CheckGeometry(); err != nil {
		return fmt.Errorf("%w: %w", ErrRegion, err)
	}
	for i, r := range reg.Regions {
		switch r.Kind {
		case KindMemfd:
			if r.FD < 0 || r.FD >= len(fds) || fds[r.FD] < 0 {
				return fmt.Errorf("%w %d: descriptor %d of %d", ErrRegion, i, r.FD, len(fds))
			}
			mapped, err := shm.Map(fds[r.FD], r.Bytes)
			if err != nil {
				return fmt.Errorf("%w %d: %w", ErrRegion, i, err)
			}
			m.regions = append(m.regions, region{mapped: mapped, whole: shm.IsWhole(fds[r.FD], r.Bytes), data: mapped.Data()})
		case KindProcessVM:
			if m.remote == nil {
				remote, err := openProcess(pid)
				if err != nil {
					return fmt.Errorf("%w %d: %w", ErrRegion, i, err)
				}
				m.remote = remote
			}
			if err := m.remote.probe(r.Address, r.Bytes); err != nil {
				return fmt.Errorf("%w %d: %w", ErrRegion, i, err)
			}
			m.regions = append(m.regions, region{address: r.Address})
		default:
			return fmt.Errorf("%w %d: kind %.32q is not known; known kinds: %s, %s", ErrRegion, i, r.Kind, KindMemfd, KindProcessVM)
		}
	}
	for _, s := range reg.Segments {
		piece := segment{region: &m.regions[s.Region], offset: s.Offset, stride: s.BlockStride, bytes: int(s.Bytes)}
		shard := s.Group*m.held + s.Shard
		m.shards[shard] = append(m.shards[shard], piece)
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd) // Linux frees the number whatever it says
		}
	}
}
