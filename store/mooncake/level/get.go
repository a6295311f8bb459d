package level

import (
	"context"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// fetching is a chunk that waits to be got.
type fetching struct {
	space  *space
	key    disk.Key
	shards []mooncake.Shard
	bytes  uint64
	done   func(*disk.Chunk, error)
}

// CanFetch implements embedded.Lower.
func (l *Level) CanFetch() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inService() && !l.ended && len(l.gets.waiting) < maxWaiting
}

// Fetch implements embedded.Lower.
func (l *Level) Fetch(key disk.Key, into [][]byte, done func(*disk.Chunk, error)) bool {
	f := &fetching{space: l.spaceOf(key.Namespace), key: key, done: done}
	if f.space == nil || !l.inService() {
		return false
	}
	f.shards = l.shardsOf(&key, into)
	for i := range f.shards {
		f.bytes += f.shards[i].At.Bytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || len(l.gets.waiting) >= maxWaiting {
		return false
	}
	l.gets.add(f, f.bytes)
	return true
}

// runGets gets what waits until ctx ends.
func (l *Level) runGets(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.gets.more:
		}
		l.gather()
		bytes := uint64(0)
		l.mu.Lock()
		most := getBytes(l.gets.waiting, l.getRate.Load())
		batch := l.gets.take(func(first, next *fetching, taken int) bool {
			if taken == 1 {
				bytes = first.bytes
			}
			bytes += next.bytes
			return first.space == next.space && bytes <= most && (taken+1)*max(len(first.shards), len(next.shards)) <= mooncake.MaxTransfer
		})
		l.mu.Unlock()
		if len(batch) > 0 {
			l.get(ctx, batch)
		}
	}
}

// gather waits for a moment while more is handed over: a lookup's chunks come one
// after the other, and few calls are faster than many.
func (l *Level) gather() {
	had := 0
	for range gatherPauses {
		l.mu.Lock()
		waiting := len(l.gets.waiting)
		l.mu.Unlock()
		if waiting <= had {
			return
		}
		had = waiting
		nap(gatherPause)
	}
}

// nap sleeps for less than a millisecond, which is the least that time.Sleep takes in an
// idle process, and in which two megabytes could come. A signal may end it.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil) // who is woken early has waited for less
}

// getBytes returns how much of what waits the next call is to get: half of it, so that
// little is left to be copied on when the last call is over, and no more than comes in
// half a second at a rate in bytes a second: a slow network's call would outlast the
// lease of its objects.
func getBytes(waiting []*fetching, rate uint64) uint64 {
	bytes := uint64(0)
	for _, f := range waiting {
		if bytes += f.bytes; bytes >= 2*mooncake.MaxGetBytes {
			break
		}
	}
	return min(max(min(bytes, rate)/2, leastGetBytes), mooncake.MaxGetBytes)
}

// bytesThere returns how much has come: what is not in the cluster takes no time.
func bytesThere(shards []mooncake.Shard, whole []bool) (bytes uint64) {
	for i := range shards {
		if whole[i] {
			bytes += shards[i].At.Bytes
		}
	}
	return bytes
}

// get gets chunks of one namespace with one call, and answers for them.
func (l *Level) get(ctx context.Context, batch []*fetching) {
	var shards []mooncake.Shard
	for _, f := range batch {
		shards = append(shards, f.shards...)
	}
	s := batch[0].space
	begun := l.opts.Now()
	whole, err := l.client.Get(ctx, s.name, shards)
	took := l.opts.Now().Sub(begun)
	l.opts.GetTook(took)
	if err != nil {
		l.check()
	} else if bytes := bytesThere(shards, whole); bytes >= leastGetBytes/2 && took > 0 {
		l.getRate.Store(uint64(float64(bytes) / took.Seconds()))
	}
	for at, f := 0, 0; f < len(batch); f++ {
		to := at + len(batch[f].shards)
		l.answer(batch[f], shards[at:to], whole[at:to], begun, err)
		at = to
	}
}

// answer ends a chunk's get, which began then.
func (l *Level) answer(f *fetching, shards []mooncake.Shard, whole []bool, begun time.Time, err error) {
	chunk := &disk.Chunk{Key: f.key, ShardBytes: uint32(shards[0].At.Bytes)}
	for i := range shards {
		chunk.Checksums = append(chunk.Checksums, shards[i].Sum)
		if err == nil && !whole[i] {
			err = errLost
			l.doubt(f.space)
			l.missedTold(f.space, uint32(f.key.Group), &f.key.Hash, begun)
		}
	}
	if err == nil && l.spaceOf(f.key.Namespace) != f.space {
		err = errVoid
	}
	if err == nil {
		l.noteThere(f.space, uint32(f.key.Group), &f.key.Hash, present, begun)
	}
	l.finishGet(f, chunk, err)
}

func (l *Level) finishGet(f *fetching, chunk *disk.Chunk, err error) {
	l.mu.Lock()
	l.gets.bytes -= f.bytes
	if err == nil {
		l.stats.GotChunks++
	} else {
		l.stats.GetsFailed++
	}
	l.mu.Unlock()
	if err != nil {
		chunk = nil
	}
	f.done(chunk, err)
}
