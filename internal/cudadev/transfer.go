package cudadev

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// transfer is a batch under way.
type transfer struct {
	ctx       context.Context
	m         *mapping
	lane      *lane
	way       Way
	direction worker.Direction
	batch     []worker.ShardCopy

	// Where the next piece begins: a shard, one of its segments, and a place in
	// that, which is at position of the shard's memory.
	shard, segment   int
	offset, position uint64
	// seen is where the GPU sees the memory from position on, for reach bytes; an
	// address of 0: not at all.
	seen  cuda.Address
	reach uint64

	summed int // shards
}

func newTransfer(ctx context.Context, m *mapping, l *lane, way Way, direction worker.Direction, batch []worker.ShardCopy) *transfer {
	return &transfer{ctx: ctx, m: m, lane: l, way: way, direction: direction, batch: batch}
}

// run enqueues launch after launch, two at most at a time, until all is copied or
// the job is given up. When it returns the GPU is through with every one.
func (t *transfer) run() error {
	var err error
	for i := 0; err == nil && t.shard < len(t.batch); i++ {
		s := t.lane.slots[i%len(t.lane.slots)]
		if s.busy {
			if err = t.finish(s); err != nil {
				break
			}
		}
		if err = t.ctx.Err(); err == nil {
			s.number = i
			err = t.launch(s)
		} else if len(t.inOrder()) > 0 {
			t.m.gpu.stats.fenced.Add(1)
		}
	}
	for _, s := range t.inOrder() {
		if finished := t.finish(s); err == nil {
			err = finished
		}
	}
	return err
}

// inOrder returns the busy slots, the older first.
func (t *transfer) inOrder() []*slot {
	var busy []*slot
	for _, s := range t.lane.slots {
		if s.busy {
			busy = append(busy, s)
		}
	}
	if len(busy) == 2 && busy[0].number > busy[1].number {
		busy[0], busy[1] = busy[1], busy[0]
	}
	return busy
}

// launch fills a slot and enqueues it. A load's bytes are summed while they are
// copied.
func (t *transfer) launch(s *slot) error {
	s.reset(t.way)
	if err := t.fill(s); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if t.direction == worker.Load {
		if err := copying.Guarded(s.toBuffer); err != nil {
			return err
		}
	}
	if err := s.enqueue(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	done := t.m.gpu.stats.of(t.direction, t.way)
	done.launches.Add(1)
	done.bytes.Add(int64(s.bytes))
	if t.direction == worker.Load {
		return t.sum(s.shards)
	}
	return nil
}

// finish waits for a slot's launch. A store's bytes are summed when they are here.
func (t *transfer) finish(s *slot) error {
	if t.m.gpu.cfg.broken.finish {
		s.busy = false
		return nil
	}
	if err := s.finish(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if t.direction == worker.Load {
		return nil
	}
	if err := copying.Guarded(s.fromBuffer); err != nil {
		return err
	}
	return t.sum(s.shards)
}

// fill takes pieces until the launch is full or there are none.
func (t *transfer) fill(s *slot) error {
	for t.shard < len(t.batch) {
		room := uint64(s.room())
		if room == 0 {
			break
		}
		c := &t.batch[t.shard]
		segments := t.m.shards[c.Group*t.m.held+c.Shard]
		g := &segments[t.segment]
		if t.reach == 0 {
			at, n := t.m.gpu.pool.find(c.Memory[t.position:])
			t.seen, t.reach = at, uint64(n)
		}
		n := min(room, g.bytes-t.offset, t.reach)
		host := t.seen
		if host == 0 {
			at, fits, err := s.buffer(c.Memory[t.position : t.position+n])
			if err != nil {
				return err
			}
			if fits == 0 {
				break
			}
			host, n = at, uint64(fits)
		} else {
			t.seen += cuda.Address(n)
		}
		there := g.at + cuda.Address(uint64(c.BlockID)*g.stride+t.offset)
		if t.direction == worker.Store {
			s.add(cuda.Piece{To: host, From: there, Bytes: n})
		} else {
			s.add(cuda.Piece{To: there, From: host, Bytes: n})
		}
		t.advance(n, g.bytes, len(segments))
	}
	s.shards = t.shard
	return nil
}

// advance moves on by a piece.
func (t *transfer) advance(n, segmentBytes uint64, segments int) {
	t.offset, t.position, t.reach = t.offset+n, t.position+n, t.reach-n
	if t.offset < segmentBytes {
		return
	}
	t.offset, t.segment = 0, t.segment+1
	if t.segment < segments {
		return
	}
	t.segment, t.position, t.reach, t.shard = 0, 0, 0, t.shard+1
}

// sum sums the shards up to one that are not summed.
func (t *transfer) sum(to int) error {
	part := t.batch[t.summed:to]
	t.summed = to
	cores := 1
	if t.direction == worker.Load {
		cores = t.m.gpu.cfg.Cores
	}
	return sum(part, cores)
}

func (s *slot) toBuffer() {
	for _, p := range s.back {
		copy(p.buffer, p.memory)
	}
}

func (s *slot) fromBuffer() {
	for _, p := range s.back {
		copy(p.memory, p.buffer)
	}
}
