package cudadev

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

const (
	// measuredBytes are copied for a measurement: what a GPU that an engine has
	// filled still has room for.
	measuredBytes = 4 << 20
	measuredRuns  = 3
	// engineWorth is by how much the kernel must be faster, in percent: the copy
	// engines leave the processors to the engine.
	engineWorth = 10
)

// decide returns the better way by the times that both took.
func decide(kernel, engine time.Duration) Way {
	if kernel+kernel*engineWorth/100 < engine {
		return ByKernel
	}
	return ByEngine
}

// choose sets the ways of stores and loads: as configured, or by a measurement with
// pieces of the mapping's size.
func (m *mapping) choose() {
	cfg := m.gpu.cfg
	m.ways = [2]Way{cfg.Way, cfg.Way}
	if cfg.Way != Measured {
		return
	}
	m.ways = [2]Way{ByKernel, ByKernel}
	times, err := m.measure()
	if err != nil {
		cfg.Log.Warn("which way of copying is the faster could not be measured; a kernel copies", "error", err)
		return
	}
	for d := range m.ways {
		m.ways[d] = decide(times[d][ByKernel], times[d][ByEngine])
	}
	cfg.Log.Info("ways to copy", "piece_bytes", m.pieceBytes(), "bytes", min(measuredBytes, cfg.LaunchBytes),
		"store_by_kernel", times[0][ByKernel], "store_by_copy_engine", times[0][ByEngine],
		"load_by_kernel", times[1][ByKernel], "load_by_copy_engine", times[1][ByEngine])
}

// pieceAlign is what the kernel copies at a time of pieces that lie well.
const pieceAlign = 16

// pieceBytes is how long the mapping's pieces are on the average, and so that they
// lie well one behind the other.
func (m *mapping) pieceBytes() uint64 {
	total, n := uint64(0), uint64(0)
	for _, segments := range m.shards {
		for i := range segments {
			total += segments[i].bytes
			n++
		}
	}
	return max(total/n/pieceAlign*pieceAlign, 1)
}

// measure returns the best times, by direction and way.
func (m *mapping) measure() (times [2][ByEngine + 1]time.Duration, err error) {
	l, err := m.gpu.lane()
	if err != nil {
		return times, err
	}
	defer m.gpu.give(l)
	size := uint64(min(measuredBytes, m.gpu.cfg.LaunchBytes))
	scratch, err := m.gpu.Alloc(size)
	if err != nil {
		return times, m.gpu.note(err)
	}
	defer func() {
		if freed := m.gpu.Free(scratch); err == nil {
			err = freed
		}
	}()
	for _, way := range []Way{ByKernel, ByEngine} {
		for d, direction := range []worker.Direction{worker.Store, worker.Load} {
			for range measuredRuns {
				took, err := m.time(l.slots[0], way, direction, scratch, size)
				if err != nil {
					return times, err
				}
				if best := &times[d][way]; *best == 0 || took < *best {
					*best = took
				}
			}
		}
	}
	return times, nil
}

// time copies scratch memory in pieces like the mapping's.
func (m *mapping) time(s *slot, way Way, direction worker.Direction, scratch cuda.Address, size uint64) (time.Duration, error) {
	s.reset(way)
	if s.stage.Data == nil {
		stage, err := m.gpu.AllocHost(m.gpu.cfg.LaunchBytes)
		if err != nil {
			return 0, m.gpu.note(err)
		}
		s.stage = stage
	}
	piece := min(m.pieceBytes(), size)
	for at := uint64(0); at+piece <= size && s.room() >= int(piece); at += piece {
		there, here := scratch+cuda.Address(at), s.stage.At+cuda.Address(at)
		if direction == worker.Store {
			s.add(cuda.Piece{To: here, From: there, Bytes: piece})
		} else {
			s.add(cuda.Piece{To: there, From: here, Bytes: piece})
		}
	}
	began := time.Now()
	err := s.enqueue()
	if finished := s.finish(); err == nil {
		err = finished
	}
	return time.Since(began), err
}
