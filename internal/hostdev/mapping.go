package hostdev

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// region is one allocation of KV memory.
type region struct {
	mapped  *shm.Mapping // nil for process_vm
	whole   bool         // every page is there already
	data    []byte
	address uint64 // process_vm
}

// segment is where the blocks have one of a shard's pieces.
type segment struct {
	region *region
	offset uint64
	stride uint64
	bytes  int
}

// mapping is one engine rank's KV cache.
type mapping struct {
	regions []region
	held    int         // shards of a block
	shards  [][]segment // by group, and within it by shard
	copier  *copier
	remote  *process // nil without process_vm regions
	ahead   *ahead   // nil: there is nothing to make ready
	lanes   int      // of a load's batch
	batches copying.Queue
}

// start begins what goes on beside the copies, on threads of low priority:
// stores, which nobody waits for, and making memory ready.
func (m *mapping) start(background func(work func())) {
	m.batches.Start(background)
	if m.ahead = newAhead(m.regions); m.ahead != nil {
		m.ahead.running.Go(func() { background(m.ahead.run) })
	}
}

// Copy implements worker.Mapping. after is not used: the engine's CPU work is
// done when it says so.
func (m *mapping) Copy(ctx context.Context, direction worker.Direction, _ worker.Event, batch []worker.ShardCopy, done func(error)) {
	work, refused := func() { done(m.run(ctx, direction, batch)) }, func() { done(copying.ErrClosed) }
	if direction == worker.Store {
		m.batches.Store(work, refused)
	} else {
		m.batches.Load(work, refused)
	}
}

// CopyWhile implements worker.GivingWay.
func (m *mapping) CopyWhile(ctx context.Context, _ worker.Event, batch []worker.ShardCopy, goOn func(copied int) bool, done func(copied int, err error)) {
	m.batches.Store(func() { done(m.inOrder(ctx, worker.Store, batch, goOn)) }, func() { done(0, copying.ErrClosed) })
}

// Close implements worker.Mapping.
func (m *mapping) Close() error {
	m.batches.Close() // nothing is taken any more
	m.ahead.end()
	return m.unmap()
}

func (m *mapping) unmap() error {
	var errs []error
	for i := range m.regions {
		if m.regions[i].mapped != nil {
			errs = append(errs, m.regions[i].mapped.Close())
		}
		m.regions[i] = region{}
	}
	if m.remote != nil {
		m.remote.close()
		m.remote = nil // its descriptor's number may be another's by the next Close
	}
	return errors.Join(errs...)
}

// run copies a batch. A load's is done by several lanes, which take one shard
// after the other: a request waits for it, and one core does not use what memory
// can give.
func (m *mapping) run(ctx context.Context, direction worker.Direction, batch []worker.ShardCopy) error {
	if direction == worker.Store || m.lanes < 2 || bytesOf(batch) < minLanesBytes {
		_, err := m.inOrder(ctx, direction, batch, func(int) bool { return true })
		return err
	}
	if err := m.begin(direction); err != nil {
		return err
	}
	defer m.end(direction)
	var lanes sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, min(m.lanes, len(batch)))
	// This core runs the goroutine that was started last, when we wait for them all.
	// Another core takes the others at once; the one that is to run next here, with
	// us going on, it would take only after a sleep of the runtime's (60 us).
	for i := range errs {
		lanes.Go(func() { errs[i] = m.lane(ctx, direction, batch, &next) })
	}
	lanes.Wait()
	return errors.Join(errs...)
}

// begin goes before a batch, end behind it.
func (m *mapping) begin(direction worker.Direction) error {
	if m.remote != nil && !m.remote.alive() {
		return fmt.Errorf("copy: %w", errGone)
	}
	if m.ahead != nil && direction == worker.Load {
		m.ahead.loads.Add(1)
	}
	return nil
}

func (m *mapping) end(direction worker.Direction) {
	if m.ahead != nil && direction == worker.Load {
		m.ahead.loads.Add(-1)
	}
}

const (
	// maxLanes is as many cores as fill a socket's memory channels well enough.
	maxLanes = 4
	// minLanesBytes is worth waking another core for.
	minLanesBytes = 1 << 20
)

func bytesOf(batch []worker.ShardCopy) (n int) {
	for i := range batch {
		n += len(batch[i].Memory)
	}
	return n
}

// inOrder copies the shards of a batch, one after the other, and before each but
// the first asks whether to go on. It returns how many it has copied.
func (m *mapping) inOrder(ctx context.Context, direction worker.Direction, batch []worker.ShardCopy, goOn func(copied int) bool) (copied int, err error) {
	if err := m.begin(direction); err != nil {
		return 0, err
	}
	defer m.end(direction)
	err = guarded(func() error {
		ahead := m.lookaheadOf(direction, batch)
		for copied < len(batch) && (copied == 0 || goOn(copied)) {
			if err := m.copyShard(ctx, direction, &batch[copied], &ahead); err != nil {
				return err
			}
			copied++
		}
		return nil
	})
	return copied, err
}

// lane copies the shards of a batch that no other lane has taken.
func (m *mapping) lane(ctx context.Context, direction worker.Direction, batch []worker.ShardCopy, next *atomic.Int64) error {
	err := guarded(func() error {
		for {
			i := next.Add(1) - 1
			if i >= int64(len(batch)) {
				return nil
			}
			ahead := m.lookaheadOf(direction, batch[i:i+1])
			if err := m.copyShard(ctx, direction, &batch[i], &ahead); err != nil {
				return err
			}
		}
	})
	if err != nil {
		next.Store(int64(len(batch))) // the others need not go on
	}
	return err
}

// guarded copies: a fault inside a mapping is an error.
func guarded(copies func() error) (err error) {
	fault := copying.Guarded(func() {
		// What was written is there for others before anybody is told of it.
		defer fence()
		err = copies()
	})
	if fault != nil {
		return fault
	}
	return err
}

// copyShard copies a shard that was not given up.
func (m *mapping) copyShard(ctx context.Context, direction worker.Direction, c *worker.ShardCopy, ahead *lookahead) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.shard(direction, c, ahead); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// shard copies one shard, segment after segment.
func (m *mapping) shard(direction worker.Direction, c *worker.ShardCopy, ahead *lookahead) error {
	segments := m.segmentsOf(c)
	memory, sum := c.Memory, uint32(0)
	for i := 0; i < len(segments); {
		s := &segments[i]
		if s.region.mapped == nil {
			n, crc, err := m.remote.transfer(direction, segments[i:], c.BlockID, memory, sum)
			if err != nil {
				return err
			}
			for _, done := range segments[i : i+n] {
				memory = memory[done.bytes:]
			}
			i, sum = i+n, crc
			continue
		}
		block := s.block(c.BlockID)
		if direction == worker.Store {
			sum = ahead.copySum(memory[:s.bytes], block, sum)
		} else {
			sum = ahead.copySum(block, memory[:s.bytes], sum)
		}
		memory = memory[s.bytes:]
		i++
	}
	c.Checksum = sum
	return nil
}

// segmentsOf returns where the pieces of a shard are.
func (m *mapping) segmentsOf(c *worker.ShardCopy) []segment { return m.shards[c.Group*m.held+c.Shard] }

// at returns where a block's piece begins in the region.
func (s *segment) at(block uint32) uint64 { return s.offset + uint64(block)*s.stride }

// block returns a block's piece.
//
// REQUIRES: the region is mapped.
func (s *segment) block(id uint32) []byte {
	at := s.at(id)
	return s.region.data[at : at+uint64(s.bytes)]
}
