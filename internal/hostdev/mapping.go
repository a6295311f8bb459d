package hostdev

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// ErrFault reports a page of a mapping that could not be had.
var ErrFault = errors.New("memory fault")

var errClosed = errors.New("the mapping is closed")

// region is one allocation of KV memory.
type region struct {
	mapped  *shm.Mapping // nil for process_vm
	data    []byte
	address uint64 // process_vm
}

// segment is where a group's blocks have one of their pieces.
type segment struct {
	region *region
	offset uint64
	stride uint64
	bytes  int
}

// mapping is one engine rank's KV cache.
type mapping struct {
	regions []region
	groups  [][]segment
	remote  *process // nil without process_vm regions

	mu      sync.Mutex
	closed  bool
	batches sync.WaitGroup
}

// Copy implements worker.Mapping. after is not used: the engine's CPU work is
// done when it says so.
//
// A batch has its own goroutine. Batches come from a handful of pipelines, each
// of which waits for its batch, so that their number is bounded by those.
func (m *mapping) Copy(ctx context.Context, direction worker.Direction, _ worker.Event, batch []worker.ShardCopy, done func(error)) {
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.batches.Add(1)
	}
	m.mu.Unlock()
	if closed {
		done(errClosed)
		return
	}
	go func() {
		defer m.batches.Done()
		done(m.run(ctx, direction, batch))
	}()
}

// Close implements worker.Mapping.
func (m *mapping) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.batches.Wait()
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
	}
	return errors.Join(errs...)
}

// run copies a batch. A fault inside a mapping, which would end the process, is
// turned into an error: it is a panic in this goroutine while run is on.
func (m *mapping) run(ctx context.Context, direction worker.Direction, batch []worker.ShardCopy) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("copy: %w at %#x", ErrFault, fault.Addr())
		}
	}()
	if m.remote != nil && !m.remote.alive() {
		return fmt.Errorf("copy: %w", errGone)
	}
	for i := range batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.shard(direction, &batch[i]); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	return nil
}

// shard copies one shard, segment after segment.
func (m *mapping) shard(direction worker.Direction, c *worker.ShardCopy) error {
	segments := m.groups[c.Group]
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
		at := s.at(c.BlockID)
		block := s.region.data[at : at+uint64(s.bytes)]
		if direction == worker.Store {
			sum = copySum(memory[:s.bytes], block, sum)
		} else {
			sum = copySum(block, memory[:s.bytes], sum)
		}
		memory = memory[s.bytes:]
		i++
	}
	c.Checksum = sum
	return nil
}

// at returns where a block's piece begins in the region.
func (s *segment) at(block uint32) uint64 { return s.offset + uint64(block)*s.stride }
