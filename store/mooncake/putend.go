package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// PutEnd implements store.Store: it stores the shards in the cluster. A false
// answer also means that there was no room in it. The checksum is not stored:
// shards that do not have it are not either.
func (s *Store) PutEnd(ctx context.Context, n store.Namespace, commits []store.PutCommit) ([]bool, error) {
	published := make([]bool, len(commits))
	ending, places, now, err := s.endings(ctx, n, commits)
	if err != nil {
		return nil, fmt.Errorf("put end: %w", err)
	}
	if len(ending) == 0 {
		return published, nil
	}
	type outcome struct {
		done []bool
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		defer s.client.calls.Done()
		done, err := s.publish(ctx, now, ending)
		result <- outcome{done, err}
	}()
	select {
	case r := <-result:
		if r.err != nil {
			return nil, fmt.Errorf("put end: %w", r.err)
		}
		for i, at := range places {
			published[at] = r.done[i]
		}
		return published, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("put end: %w", ctx.Err())
	}
}

// endings takes the puts out of the books and begins a transfer for them, under the
// namespace's present name. Puts of before a reset are void.
func (s *Store) endings(ctx context.Context, n store.Namespace, commits []store.PutCommit) (ending []*openPut, places []int, now store.Namespace, err error) {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	ns, err := s.client.knownLocked(n)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, now, err
	}
	for i := range commits {
		p := s.puts[commits[i].Ticket]
		if p == nil || p.ns != ns.id {
			continue
		}
		delete(s.puts, commits[i].Ticket)
		if p.resets != ns.resets {
			s.dropLocked(p)
			continue
		}
		p.shard.Sum = commits[i].Checksum
		ending, places = append(ending, p), append(places, i)
	}
	if len(ending) > 0 {
		s.client.calls.Add(1)
	}
	return ending, places, store.Namespace{ID: ns.id, ResetEpoch: ns.resets}, nil
}

// publish stores puts and ends them, whatever becomes of them.
func (s *Store) publish(ctx context.Context, n store.Namespace, ending []*openPut) (done []bool, err error) {
	done = make([]bool, len(ending))
	// What a put has in common with others is said once a call: by pin.
	byPin := map[store.Pin][]int{}
	for i, p := range ending {
		byPin[p.pin] = append(byPin[p.pin], i)
	}
	for pin, which := range byPin {
		shards := make([]Shard, len(which))
		for k, i := range which {
			shards[k] = ending[i].shard
		}
		results, failed := s.client.Put(ctx, n, pin, shards)
		if err == nil {
			err = failed
		}
		s.client.mu.Lock()
		for k, i := range which {
			if results[k] != PutStored {
				s.dropLocked(ending[i])
				continue
			}
			done[i] = true
			s.endLocked(ending[i])
		}
		s.client.mu.Unlock()
	}
	return done, err
}

// endLocked gives a put's range back, and its key free.
func (s *Store) endLocked(p *openPut) {
	s.staging.give(p.shard.At.Offset, p.shard.At.Bytes)
	delete(s.underway, p.key)
}

// dropLocked ends a put that came to nothing.
func (s *Store) dropLocked(p *openPut) {
	s.endLocked(p)
	s.client.stats.PutsFailed++
}

// PutRevoke implements store.Store.
func (s *Store) PutRevoke(ctx context.Context, _ store.Namespace, tickets []uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put revoke: %w", err)
	}
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	for _, t := range tickets {
		if p := s.puts[t]; p != nil {
			delete(s.puts, t)
			s.dropLocked(p)
		}
	}
	return nil
}
