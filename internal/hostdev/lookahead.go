package hostdev

import "github.com/mooncake-sidecar/sidecar/worker"

const (
	// aheadBytes is how far in front of a copy its source is fetched. The processor
	// fetches ahead by itself, but only within a page, and a store's pieces lie
	// anywhere: without this a piece begins with the memory's whole latency, and so
	// does every page. A page's length was the best of what was measured from 512
	// bytes to 16 KiB, and it is a small part of the first-level cache.
	aheadBytes = 4 << 10
	// leastRun keeps the copy's calls from becoming many small ones where pieces have
	// odd lengths.
	leastRun = 8 * lineBytes
)

// lookahead walks a batch's sources aheadBytes in front of the copy.
type lookahead struct {
	m         *mapping
	direction worker.Direction
	batch     []worker.ShardCopy // of which the first is walked, then the rest
	piece     int                // of the first shard: the next one to walk
	rest      []byte             // of the piece before that; empty: there is nothing more
}

// lookaheadOf returns one for a copy that begins with the batch's first shard and
// goes on with the others. With an engine's private memory there is nothing to
// fetch.
func (m *mapping) lookaheadOf(direction worker.Direction, batch []worker.ShardCopy) lookahead {
	l := lookahead{m: m, direction: direction}
	if m.remote == nil {
		l.batch = batch
		l.advance(aheadBytes)
	}
	return l
}

// advance walks on.
func (l *lookahead) advance(n int) {
	for n >= len(l.rest) {
		n -= len(l.rest)
		if l.rest = l.next(); l.rest == nil {
			return
		}
	}
	l.rest = l.rest[n:]
}

// next returns the next piece, nil at the end of the batch.
func (l *lookahead) next() []byte {
	for len(l.batch) > 0 {
		c := &l.batch[0]
		if l.direction == worker.Load { // from one range
			l.batch = l.batch[1:]
			return c.Memory
		}
		if segments := l.m.segmentsOf(c); l.piece < len(segments) {
			l.piece++
			return segments[l.piece-1].block(c.BlockID)
		}
		l.batch, l.piece = l.batch[1:], 0
	}
	return nil
}

// copySum copies a piece and returns the checksum of everything so far, fetching
// what is walked.
//
// REQUIRES: as the copier's; pieces come in the order in which they are walked.
func (l *lookahead) copySum(dst, src []byte, sum uint32) uint32 {
	for len(src) > 0 {
		n, ahead := len(src), uintptr(0)
		if len(l.rest) > 0 {
			ahead = addressOf(l.rest) - addressOf(src)
			// As far as what is ahead lies in a row; whole lines, for a copy's writes are.
			run := max(len(l.rest)+lineBytes-1, leastRun) / lineBytes * lineBytes
			if n-run >= leastRun {
				n = run
			}
		}
		sum = l.m.copier.copySum(dst[:n], src[:n], sum, ahead)
		l.advance(n)
		dst, src = dst[n:], src[n:]
	}
	return sum
}
