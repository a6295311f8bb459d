package cudadev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// segment is where the blocks have one of a shard's pieces.
type segment struct {
	at     cuda.Address // block 0's
	stride uint64
	bytes  uint64
}

// mapping is one engine rank's KV cache.
type mapping struct {
	device      *Device
	gpu         *gpu
	held        int         // shards of a block
	shards      [][]segment // by group, and within it by shard
	allocations []*allocation
	ring        []cuda.Event // the engine's events
	deaf        bool         // they can't be opened here
	ways        [2]Way       // of stores and of loads
	counted     bool         // in the figures
	batches     copying.Queue
}

func (m *mapping) open(reg *connector.Register, fds []int) error {
	bases := make([]cuda.Address, len(reg.Regions))
	for i := range reg.Regions {
		r := &reg.Regions[i]
		held, err := m.gpu.allocations.hold(r, fds)
		if err != nil {
			return fmt.Errorf("%w %d: %w", ErrRegion, i, err)
		}
		m.allocations = append(m.allocations, held)
		if r.Bytes > held.bytes || r.Address > held.bytes-r.Bytes {
			return fmt.Errorf("%w %d: %d bytes at %d of an allocation of %d", ErrRegion, i, r.Bytes, r.Address, held.bytes)
		}
		bases[i] = held.at + cuda.Address(r.Address)
	}
	for _, s := range reg.Segments {
		shard := s.Group*m.held + s.Shard
		m.shards[shard] = append(m.shards[shard], segment{at: bases[s.Region] + cuda.Address(s.Offset), stride: s.BlockStride, bytes: s.Bytes})
	}
	return m.openEvents(reg.Events)
}

// openEvents opens the engine's events, all or none: memory can be shared where
// events can't, as between containers without a common IPC namespace.
func (m *mapping) openEvents(handles [][]byte) error {
	for i, handle := range handles {
		event, err := m.gpu.OpenEvent(cuda.Handle(handle))
		if err == nil {
			m.ring = append(m.ring, event)
			continue
		}
		err = fmt.Errorf("event %d: %w", i, m.gpu.note(err))
		if m.gpu.lost() != nil {
			return err
		}
		m.gpu.cfg.Log.Warn("the engine's events can't be opened: it holds each job back until the GPU is through", "error", err)
		m.deaf = true
		return m.closeEvents()
	}
	return nil
}

func (m *mapping) closeEvents() error {
	var errs []error
	for _, event := range m.ring {
		errs = append(errs, m.gpu.DestroyEvent(event))
	}
	m.ring = nil
	return errors.Join(errs...)
}

// HasEvents implements worker.EventMapping.
func (m *mapping) HasEvents() bool { return !m.deaf }

// PieceBytes implements worker.SizedMapping. A piece is several launches, so that
// the GPU is busy while its bytes are summed.
func (m *mapping) PieceBytes() (load, store int) {
	return 16 * m.gpu.cfg.LaunchBytes, 4 * m.gpu.cfg.LaunchBytes
}

// Copy implements worker.Mapping.
func (m *mapping) Copy(ctx context.Context, direction worker.Direction, after worker.Event, batch []worker.ShardCopy, done func(error)) {
	work, refused := func() { done(m.run(ctx, direction, after, batch)) }, func() { done(copying.ErrClosed) }
	if direction == worker.Store {
		m.batches.Store(work, refused)
	} else {
		m.batches.Load(work, refused)
	}
}

// run copies a batch. When it returns the GPU does nothing for it any more.
func (m *mapping) run(ctx context.Context, direction worker.Direction, after worker.Event, batch []worker.ShardCopy) error {
	err := m.copy(ctx, direction, after, batch)
	if err != nil && ctx.Err() == nil {
		m.gpu.stats.failed.Add(1)
	}
	return err
}

func (m *mapping) copy(ctx context.Context, direction worker.Direction, after worker.Event, batch []worker.ShardCopy) error {
	if err := m.gpu.lost(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := m.await(ctx, after); err != nil {
		return err
	}
	l, err := m.gpu.lane()
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer m.gpu.give(l)
	way := m.ways[direction-worker.Store]
	return newTransfer(ctx, m, l, way, direction, batch).run()
}

const (
	// firstLook and longestLook are the waits between two looks at an event: the
	// first is about what a record takes to be seen, the last what nobody notices.
	firstLook   = 20 * time.Microsecond
	longestLook = 500 * time.Microsecond
)

// await waits until the engine's event has happened, or the job is given up.
func (m *mapping) await(ctx context.Context, after worker.Event) error {
	if after == nil || m.gpu.cfg.broken.await {
		return nil
	}
	slot, ok := after.(int)
	if !ok || slot < 0 || slot >= len(m.ring) {
		return fmt.Errorf("copy: %w: %v of %d", errNoEvent, after, len(m.ring))
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var began time.Time // of the wait
	defer func() {
		if !began.IsZero() {
			m.gpu.stats.waitedNanos.Add(int64(time.Since(began)))
		}
	}()
	for look := firstLook; ; look = min(2*look, longestLook) {
		happened, err := m.gpu.Done(m.ring[slot])
		if err != nil {
			return fmt.Errorf("copy: wait for the engine: %w", m.gpu.note(err))
		}
		if happened {
			return nil
		}
		if began.IsZero() {
			began = time.Now()
			m.gpu.stats.waits.Add(1)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		timer.Reset(look)
		<-timer.C
	}
}

// count adds a mapping to the figures of those that there are, or takes it out.
func (m *mapping) count(n int64) {
	for i, direction := range []worker.Direction{worker.Store, worker.Load} {
		m.gpu.stats.of(direction, m.ways[i]).caches.Add(n)
	}
	m.counted = n > 0
}

// Close implements worker.Mapping.
func (m *mapping) Close() error {
	m.batches.Close()
	return m.unmap()
}

// unmap gives everything back. A second call does nothing.
func (m *mapping) unmap() error {
	if m.gpu == nil {
		return nil
	}
	if m.counted {
		m.count(-1)
	}
	errs := []error{m.closeEvents()}
	for _, held := range m.allocations {
		errs = append(errs, m.gpu.allocations.drop(held))
	}
	if m.gpu.lost() != nil {
		errs = nil // it answers everything with its error
	}
	m.gpu, m.allocations = nil, nil
	m.device.release()
	return errors.Join(errs...)
}
