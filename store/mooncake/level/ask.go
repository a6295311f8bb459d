package level

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// question is what is asked of the cluster at a time, call by call.
type question struct {
	space *space

	mu   sync.Mutex
	left []store.ChunkKey
	err  error // of the first call that failed

	sparse bool // not all keys are asked for
	turn   uint32
}

// Ask implements embedded.Cluster. The question has its own time: how long this
// caller waits says nothing of the cluster, and the answer is of use to the next. Who asks
// what is being asked waits for that answer.
func (l *Level) Ask(ctx context.Context, digest [32]byte, chunks []store.ChunkKey) error {
	s := l.spaceOf(digest)
	if s == nil || len(chunks) == 0 || !l.inService() {
		return nil
	}
	id := s.questionID(chunks)
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return errEnded
	}
	a, equal := l.underWay[id]
	if !equal {
		a = &asking{done: make(chan struct{})}
		l.underWay[id] = a
		l.asking.Add(1)
	}
	l.mu.Unlock()
	if !equal {
		go l.finish(context.WithoutCancel(ctx), a, id, &question{space: s, left: chunks})
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// asking is a question that is under way, for all who ask the same: a caller that has
// given up asks again, long before a slow master has answered.
type asking struct {
	done chan struct{}
	err  error // set before done is closed
}

// questionID tells questions apart.
func (s *space) questionID(chunks []store.ChunkKey) (id uint64) {
	for i := range chunks {
		id = bits.RotateLeft64(id*scramble, 31) ^ s.digest(chunks[i].Group, &chunks[i].Hash)
	}
	return id
}

// finish asks a question and tells all who wait for it.
func (l *Level) finish(ctx context.Context, a *asking, id uint64, q *question) {
	defer l.asking.Done()
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if q.sparse = len(q.left) >= sparseFrom && !l.doubts(q.space); q.sparse {
		q.turn = l.turnOf(q.space, q.left)
	}
	a.err = l.ask(ctx, q)
	l.mu.Lock()
	delete(l.underWay, id)
	l.mu.Unlock()
	close(a.done)
}

// ask makes a question's calls, the first chunks first and a few at a time. What
// they say is noted call by call: a caller that waits no longer has what is in front.
func (l *Level) ask(ctx context.Context, q *question) error {
	var calls sync.WaitGroup
	for range askers {
		calls.Go(func() {
			for chunks := q.next(); len(chunks) > 0; chunks = q.next() {
				q.note(l.askPart(ctx, q, chunks))
			}
		})
	}
	calls.Wait()
	return q.err
}

// next takes the chunks of the next call, none when there is nothing left or a call
// has failed.
func (q *question) next() []store.ChunkKey {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil
	}
	n, keys := 0, 0
	for ; n < len(q.left); n++ {
		asked, most := q.space.shards(q.left[n].Group), mooncake.MaxKeys
		if q.sparse {
			// Not of this turn: calls of the next question are to be of the same chunks.
			_, asked = q.space.partOf(q.left[n].Group, n, 0)
			most = sparseKeys
		}
		if n > 0 && keys+asked > most {
			break
		}
		keys += asked
	}
	chunks := q.left[:n]
	q.left = q.left[n:]
	return chunks
}

// note remembers the first error.
func (q *question) note(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = cmp.Or(q.err, err)
}

// askPart asks for the chunks of one call.
func (l *Level) askPart(ctx context.Context, q *question, chunks []store.ChunkKey) error {
	if q.sparse && !l.doubts(q.space) {
		return l.askSparsely(ctx, q.space, chunks, q.turn)
	}
	_, err := l.askSome(ctx, q.space, chunks)
	return err
}

// askSome asks for chunks with one call, or as many as their keys take, and notes the
// answers.
func (l *Level) askSome(ctx context.Context, s *space, chunks []store.ChunkKey) ([]kv.Existence, error) {
	begun := l.opts.Now()
	found, err := l.client.Existence(ctx, s.name, chunks)
	return found, l.noteAnswers(s, chunks, nil, found, begun, err)
}

// noteAnswers notes what was found, or why nothing was, by a call that began then and
// asked for parts of the chunks; nil: for all of them.
func (l *Level) noteAnswers(s *space, chunks []store.ChunkKey, parts []mooncake.Part, found []kv.Existence, begun time.Time, err error) error {
	took := l.opts.Now().Sub(begun)
	l.opts.Asked(took)
	there := 0
	for i, e := range found {
		if e == kv.Present {
			there++
		}
		// The lease began while the question was under way, at the earliest when it was
		// asked.
		switch {
		case e == kv.Absent:
			l.noteMissed(s, chunks[i].Group, &chunks[i].Hash, begun)
		case e != kv.Present || took >= l.opts.Lease/4:
		case i < len(parts) && parts[i] != (mooncake.Part{}):
			l.noteThere(s, chunks[i].Group, &chunks[i].Hash, concluded, begun)
		default:
			l.noteThere(s, chunks[i].Group, &chunks[i].Hash, present, begun)
		}
	}
	if err != nil {
		l.check()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Questions++
	if err != nil {
		l.stats.AskFailed++
		return fmt.Errorf("ask the cluster: %w", err)
	}
	l.stats.Asked += uint64(len(chunks))
	l.stats.Found += uint64(there)
	return nil
}
