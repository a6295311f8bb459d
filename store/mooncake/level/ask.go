package level

import (
	"cmp"
	"context"
	"fmt"
	"sync"

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
}

// Ask implements embedded.Cluster. The question has its own time: how long this
// caller waits says nothing of the cluster, and the answer is of use to the next.
func (l *Level) Ask(ctx context.Context, digest [32]byte, chunks []store.ChunkKey) error {
	s := l.spaceOf(digest)
	if s == nil || len(chunks) == 0 || !l.inService() {
		return nil
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return errEnded
	}
	l.asking.Add(1)
	l.mu.Unlock()
	answered := make(chan error, 1)
	go func() {
		defer l.asking.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
		defer cancel()
		answered <- l.ask(limited, &question{space: s, left: chunks})
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask makes a question's calls, the first chunks first and a few at a time. What
// they say is noted call by call: a caller that waits no longer has what is in front.
func (l *Level) ask(ctx context.Context, q *question) error {
	var calls sync.WaitGroup
	for range askers {
		calls.Go(func() {
			for chunks := q.next(); len(chunks) > 0; chunks = q.next() {
				_, err := l.askSome(ctx, q.space, chunks)
				q.note(err)
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
		shards := q.space.shards(q.left[n].Group)
		if n > 0 && keys+shards > mooncake.MaxKeys {
			break
		}
		keys += shards
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

// askSome asks for chunks with one call, and notes the answers.
func (l *Level) askSome(ctx context.Context, s *space, chunks []store.ChunkKey) ([]kv.Existence, error) {
	begun := l.opts.Now()
	found, err := l.client.Existence(ctx, s.name, chunks)
	took := l.opts.Now().Sub(begun)
	l.opts.Asked(took)
	present := 0
	for i, e := range found {
		if e == kv.Present {
			present++
		}
		// The lease began while the question was under way, at the earliest when it was
		// asked.
		if took < l.opts.Lease/4 || e != kv.Present {
			l.note(s, chunks[i].Group, &chunks[i].Hash, e == kv.Present)
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
		return nil, fmt.Errorf("ask the cluster: %w", err)
	}
	l.stats.Asked += uint64(len(chunks))
	l.stats.Found += uint64(present)
	return found, nil
}
