package level

import (
	"context"
	"errors"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Errors that done functions are given.
var (
	// errNoRoom: the cluster had none.
	errNoRoom = errors.New("the Mooncake cluster has no room")
	// errVoid: the namespace was reset meanwhile.
	errVoid = errors.New("the namespace was reset")
	// errLost: the cluster does not have it, or it is not known.
	errLost = errors.New("the Mooncake cluster did not take it, or does not have it")
	// errEnded: the level is at its end.
	errEnded = errors.New("the way to the Mooncake cluster is closed")
)

// putting is a chunk that waits to be put.
type putting struct {
	space  *space
	chunk  disk.Chunk
	pin    store.Pin
	shards []mooncake.Shard
	bytes  uint64
	done   func(error)
}

// QueueBytes implements embedded.Lower.
func (l *Level) QueueBytes() uint64 { return l.opts.QueueBytes }

// CanDemote implements embedded.Lower.
func (l *Level) CanDemote(bytes uint64) bool {
	full := l.client.Full()
	l.mu.Lock()
	defer l.mu.Unlock()
	return !full && l.inService() && l.fitsLocked(bytes)
}

// fitsLocked tells whether so many bytes more may wait. One chunk may in any case.
func (l *Level) fitsLocked(bytes uint64) bool {
	return !l.ended && len(l.puts.waiting) < maxWaiting && (l.puts.bytes == 0 || l.puts.bytes+bytes <= l.opts.QueueBytes)
}

// Demote implements embedded.Lower. What there is no room for is the newest: what
// waits has waited longer, and stands before it in its chain.
func (l *Level) Demote(chunk disk.Chunk, source [][]byte, done func(error)) bool {
	return l.Share(chunk, store.PinNone, source, done)
}

// Share implements embedded.Cluster. Any pin is a soft one there: nobody could end a
// hard one, and a soft one ends with the master's time for it.
func (l *Level) Share(chunk disk.Chunk, pin store.Pin, source [][]byte, done func(error)) bool {
	p := &putting{space: l.spaceOf(chunk.Namespace), chunk: chunk, pin: min(pin, store.PinSoft), done: done}
	if p.space != nil {
		p.shards = l.shardsOf(&chunk.Key, source)
	}
	for i := range p.shards {
		p.shards[i].Sum = chunk.Checksums[i]
		p.bytes += p.shards[i].At.Bytes
	}
	full := l.client.Full()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case p.shards == nil:
		l.stats.Refused[RefusedReset]++
	case !l.inService():
		l.stats.Refused[RefusedDown]++
	case full:
		l.stats.Refused[RefusedFull]++
	case !l.fitsLocked(p.bytes):
		l.stats.Refused[RefusedQueue]++
	default:
		l.puts.add(p, p.bytes)
		return true
	}
	return false
}

// shardsOf says where pieces of the memory are, nil if they are none. A piece
// of the mapping that goes on to its end says where it is by its capacity.
func (l *Level) shardsOf(key *disk.Key, pieces [][]byte) []mooncake.Shard {
	shards := make([]mooncake.Shard, len(pieces))
	for i, piece := range pieces {
		offset := cap(l.opts.Memory) - cap(piece)
		if offset < 0 || len(piece) == 0 || offset+len(piece) > len(l.opts.Memory) || &l.opts.Memory[offset] != &piece[0] {
			panic("BUG: bytes that are not in the registered memory")
		}
		shards[i] = mooncake.Shard{
			Group: uint32(key.Group), Shard: uint32(i), Hash: key.Hash, At: mooncake.Range{Offset: uint64(offset), Bytes: uint64(len(piece))},
		}
	}
	return shards
}

// runPuts puts what waits until ctx ends.
func (l *Level) runPuts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.puts.more:
		}
		bytes := uint64(0)
		l.mu.Lock()
		batch := l.puts.take(func(first, next *putting, taken int) bool {
			if taken == 1 {
				bytes = first.bytes
			}
			bytes += next.bytes
			return first.space == next.space && first.pin == next.pin && bytes <= putBatchBytes &&
				(taken+1)*max(len(first.shards), len(next.shards)) <= mooncake.MaxTransfer
		})
		l.mu.Unlock()
		switch {
		case len(batch) == 0:
		case l.spaceOf(batch[0].chunk.Namespace) != batch[0].space: // it was reset
			for _, p := range batch {
				l.finishPut(p, errVoid)
			}
		default:
			l.put(ctx, batch)
		}
	}
}

// put puts chunks of one namespace with one call, and answers for them.
func (l *Level) put(ctx context.Context, batch []*putting) {
	var shards []mooncake.Shard
	for _, p := range batch {
		shards = append(shards, p.shards...)
	}
	s := batch[0].space
	begun := l.opts.Now()
	// A call ends with its transfer, whatever becomes of ctx; only what was not begun
	// is given up.
	results, err := l.client.Put(ctx, s.name, batch[0].pin, shards)
	l.opts.PutTook(l.opts.Now().Sub(begun))
	if err != nil {
		l.check()
	}
	for _, p := range batch {
		outcome := chunkResult(results[:len(p.shards)])
		results = results[len(p.shards):]
		switch {
		case outcome == nil:
			l.noteThere(s, uint32(p.chunk.Group), &p.chunk.Hash, present, begun)
		case err != nil && errors.Is(outcome, errLost):
			outcome = fmt.Errorf("%w: %w", errLost, err)
		}
		l.finishPut(p, outcome)
	}
}

// chunkResult is what became of a chunk, of whose shards some may have been put.
func chunkResult(results []mooncake.PutResult) error {
	for _, r := range results {
		switch r {
		case mooncake.PutStored:
			continue
		case mooncake.PutNoRoom:
			return errNoRoom
		case mooncake.PutChanged:
			return disk.ErrSource
		case mooncake.PutDenied:
			return errVoid
		case mooncake.PutFailed:
		}
		return errLost
	}
	return nil
}

// finishPut answers for a chunk.
func (l *Level) finishPut(p *putting, err error) {
	l.mu.Lock()
	l.puts.bytes -= p.bytes
	if err == nil {
		l.stats.PutChunks++
	} else {
		l.stats.PutsFailed++
	}
	if errors.Is(err, errNoRoom) {
		l.stats.NoRoom++
	}
	l.mu.Unlock()
	p.done(err)
}
