package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// maxCall bounds the items of one call to the store, so that a message stays
// well below what a transport takes.
const maxCall = 8192

var (
	errCancelled = errors.New("cancelled")
	errCopy      = errors.New("copy failed")
	errBadPlace  = errors.New("the store named memory that is not mapped")
)

// memoryOf returns the bytes of a place, which must be exactly one shard.
func memoryOf(segments []store.Segment, place store.Place, shardBytes int) ([]byte, error) {
	if int64(place.Segment) >= int64(len(segments)) || int(place.Bytes) != shardBytes {
		return nil, fmt.Errorf("%w: segment %d of %d, %d bytes for a shard of %d",
			errBadPlace, place.Segment, len(segments), place.Bytes, shardBytes)
	}
	data := segments[place.Segment].Data()
	end := place.Offset + uint64(place.Bytes)
	if end < place.Offset || end > uint64(len(data)) {
		return nil, fmt.Errorf("%w: [%d, %d) of %d bytes", errBadPlace, place.Offset, end, len(data))
	}
	return data[place.Offset:end:end], nil
}

// copyAll copies a load piece by piece, each when it is the job's turn. The job
// board is looked at before every piece, and by the device before every shard.
// after is told of each piece that was copied; copies[i].Checksum is set by then,
// and what it returns ends the copies. On an error the piece under way is in an unknown state, and
// no copy of the job is under way any more.
func (n *session) copyAll(j *job, copies []ShardCopy, after func(from, to int) error) error {
	for from := 0; from < len(copies); {
		j.loop.Beat()
		piece := n.loadPiece
		if n.queue.alone(j) {
			piece *= alonePieces
		}
		to, bytes := pieceEnd(copies[:n.batchEnd(copies, from, n.srv.cfg.BatchBytes)], from, piece)
		if n.isCancelled(j) || !n.queue.await(j, bytes) {
			return errCancelled
		}
		if d := n.srv.cfg.Faults.CopyDelay; d > 0 {
			pause(n.ctx, d)
		}
		err := n.copyBatch(j, Load, copies[from:to])
		n.queue.done(j)
		if err != nil {
			if n.isCancelled(j) {
				return errCancelled
			}
			return fmt.Errorf("%w: %w", errCopy, err)
		}
		if err := after(from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// batchEnd returns the end of the batch that begins at from, of at most so many bytes.
func (n *session) batchEnd(copies []ShardCopy, from, most int) int {
	to, bytes := from, 0
	for to < len(copies) && to-from < n.srv.cfg.BatchShards {
		bytes += len(copies[to].Memory)
		if to > from && bytes > most {
			break
		}
		to++
	}
	return to
}

// copyBatch copies one batch and waits for it, whatever becomes of the job: as
// long as the device may touch a block, the job is not over.
func (n *session) copyBatch(j *job, direction Direction, batch []ShardCopy) error {
	return n.copying(j, func(ctx context.Context, after Event, done func(error)) {
		n.mapping.Copy(ctx, direction, after, batch, done)
	})
}

// copyWhile copies a store's batch likewise, while goOn says so.
func (n *session) copyWhile(j *job, m GivingWay, batch []ShardCopy, goOn func(copied int) bool) (copied int, err error) {
	err = n.copying(j, func(ctx context.Context, after Event, done func(error)) {
		m.CopyWhile(ctx, after, batch, goOn, func(n int, err error) {
			copied = n
			done(err)
		})
	})
	return copied, err
}

// copying starts copies of a job and waits until they are done.
func (n *session) copying(j *job, start func(ctx context.Context, after Event, done func(error))) (err error) {
	ctx := context.Context(boardContext{j.ctx, n, j})
	if n.srv.cfg.Faults.IgnoreCancel {
		ctx = context.WithoutCancel(j.ctx)
	}
	ended := make(chan error, 1)
	done := func(err error) { ended <- err }
	if j.after < 0 {
		start(ctx, nil, done)
		return <-ended
	}
	// The engine's step takes as long as it does; the engine's deadline bounds this.
	j.loop.Await(func() {
		start(ctx, j.after, done)
		err = <-ended
	})
	return err
}

// boardContext is a job's context that has an error as soon as the board gives
// the job up.
type boardContext struct {
	context.Context
	session *session
	job     *job
}

// Err implements context.Context.
func (c boardContext) Err() error {
	if c.session.isCancelled(c.job) {
		return errCancelled
	}
	return nil
}
