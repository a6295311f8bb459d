package cudadev

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
)

const (
	// tileBytes is what a warp of the kernel copies at a time.
	tileBytes = 8 << 10
	// entryBytes is a tile's entry in a list, see copy.ptx.
	entryBytes = 24
	// maxTiles bounds a launch of small pieces.
	maxTiles = 16 << 10
	// The kernel's size: so many bytes under way as fill a bus, on few processors,
	// which the engine lacks meanwhile.
	kernelThreads = 512
	kernelBlocks  = 4
	warpThreads   = 32
	// stageAlign is a border of the buffer's pieces, which the kernel likes.
	stageAlign = 256
)

// lane is a stream with two slots: one is filled while the other is copied.
type lane struct {
	gpu    *gpu
	stream cuda.Stream
	slots  [2]*slot
}

// slot is one launch.
type slot struct {
	gpu    *gpu
	stream cuda.Stream
	done   cuda.Event
	list   cuda.Host    // the kernel's, here
	remote cuda.Address // and there
	stage  cuda.Host    // the buffer for what is not registered; nil until one is needed

	way    Way
	tiles  int
	copies cuda.Copies
	pieces int // in copies
	bytes  int
	staged int // bytes of stage in use
	back   []stagedPiece
	// shards of the batch are complete with this launch, those before included.
	shards int
	number int // of the launch in its batch
	busy   bool
}

// stagedPiece is memory that the GPU does not see, and its place in the buffer.
type stagedPiece struct{ memory, buffer []byte }

func newLane(g *gpu) (l *lane, err error) {
	l = &lane{gpu: g}
	if l.stream, err = g.NewStream(); err != nil {
		return nil, err
	}
	for i := range l.slots {
		s, err := newSlot(g, l.stream)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.slots[i] = s
	}
	return l, nil
}

func (l *lane) close() error {
	var errs []error
	for _, s := range l.slots {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	return errors.Join(append(errs, l.gpu.DestroyStream(l.stream))...)
}

func newSlot(g *gpu, stream cuda.Stream) (*slot, error) {
	s := &slot{gpu: g, stream: stream}
	var err error
	if s.done, err = g.NewEvent(); err != nil {
		return nil, err
	}
	if s.list, err = g.AllocHost(maxTiles * entryBytes); err != nil {
		return nil, errors.Join(err, g.DestroyEvent(s.done))
	}
	if s.remote, err = g.Alloc(maxTiles * entryBytes); err != nil {
		return nil, errors.Join(err, g.FreeHost(s.list), g.DestroyEvent(s.done))
	}
	return s, nil
}

func (s *slot) close() error {
	err := errors.Join(s.gpu.Free(s.remote), s.gpu.FreeHost(s.list), s.gpu.DestroyEvent(s.done))
	if s.stage.Data != nil {
		err = errors.Join(err, s.gpu.FreeHost(s.stage))
	}
	return err
}

// reset empties the slot.
func (s *slot) reset(way Way) {
	s.way, s.tiles, s.pieces, s.bytes, s.staged, s.back = way, 0, 0, 0, 0, s.back[:0]
	s.copies.Reset()
}

// room returns how many bytes of a piece the launch can take.
func (s *slot) room() int {
	left := s.gpu.cfg.LaunchBytes - s.bytes
	if s.way == ByKernel {
		return min(left, (maxTiles-s.tiles)*tileBytes)
	}
	if s.pieces == maxTiles {
		return 0
	}
	return left
}

// add adds a piece of at most room bytes.
func (s *slot) add(p cuda.Piece) {
	s.bytes += int(p.Bytes)
	if s.way == ByEngine {
		s.copies.Add(p)
		s.pieces++
		return
	}
	for p.Bytes > 0 {
		n := min(p.Bytes, tileBytes)
		entry := s.list.Data[s.tiles*entryBytes:][:entryBytes]
		binary.NativeEndian.PutUint64(entry, uint64(p.To))
		binary.NativeEndian.PutUint64(entry[8:], uint64(p.From))
		binary.NativeEndian.PutUint64(entry[16:], n)
		s.tiles++
		p.To, p.From, p.Bytes = p.To+cuda.Address(n), p.From+cuda.Address(n), p.Bytes-n
	}
}

// buffer returns where the GPU sees a place for memory that it does not see, and
// for how many bytes: 0 when the buffer is full.
func (s *slot) buffer(memory []byte) (at cuda.Address, n int, err error) {
	if s.stage.Data == nil {
		if s.stage, err = s.gpu.AllocHost(s.gpu.cfg.LaunchBytes); err != nil {
			return 0, 0, s.gpu.note(err)
		}
	}
	n = min(len(memory), len(s.stage.Data)-s.staged)
	if n <= 0 {
		return 0, 0, nil
	}
	at = s.stage.At + cuda.Address(s.staged)
	s.back = append(s.back, stagedPiece{memory: memory[:n], buffer: s.stage.Data[s.staged:][:n]})
	s.staged = (s.staged + n + stageAlign - 1) / stageAlign * stageAlign
	s.gpu.stats.buffered.Add(int64(n))
	return at, n, nil
}

// enqueue gives the launch to the GPU. The slot is busy from then on, error or not,
// until finish.
func (s *slot) enqueue() error {
	s.busy = true
	err := s.gpu.note(s.give())
	s.certainly(func() error { return s.gpu.Record(s.done, s.stream) })
	if lost := s.gpu.lost(); lost != nil {
		return lost
	}
	return err
}

func (s *slot) give() error {
	if s.way == ByEngine {
		return s.gpu.Copy(&s.copies, s.stream)
	}
	s.copies.Reset()
	s.copies.Add(cuda.Piece{To: s.remote, From: s.list.At, Bytes: uint64(s.tiles * entryBytes)})
	if err := s.gpu.Copy(&s.copies, s.stream); err != nil {
		return err
	}
	warps := kernelThreads / warpThreads
	return s.gpu.Launch(s.gpu.kernel, min((s.tiles+warps-1)/warps, kernelBlocks), kernelThreads, s.remote, s.tiles, s.stream)
}

// finish waits until the GPU is through with the launch.
func (s *slot) finish() error {
	s.busy = false
	s.certainly(func() error { return s.gpu.Await(s.done) })
	return s.gpu.lost()
}

// uncertain is the wait between two attempts to learn what the GPU does.
const uncertain = 100 * time.Millisecond

// certainly does what must succeed, unless the context's end has ended all that the
// GPU did: otherwise it may still be copying, and nobody may be told that it is not.
// The process is to end then; this waits for it.
func (s *slot) certainly(do func() error) {
	for !s.gpu.dead() {
		err := do()
		if err == nil {
			return
		}
		if _ = s.gpu.note(err); !cuda.Lost(err) {
			s.gpu.unsure(err)
			time.Sleep(uncertain)
		}
	}
}
