package mooncake

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// openPut is a granted put that has not ended.
type openPut struct {
	ns     store.NamespaceID
	resets uint64 // of the namespace, when it was granted
	key    string
	at     Range
	pin    store.Pin
	sum    uint32 // of the bytes, by who wrote them
}

// PutStart implements store.Store. Chunks live as long as the cluster keeps them:
// it knows no time to live, and no salt tags.
func (s *Store) PutStart(ctx context.Context, n store.Namespace, opts store.PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	ns, err := s.current(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("put start: %w", err)
	}
	for i := range items {
		if it := &items[i]; !ns.has(it.Group, it.Shard) {
			return nil, fmt.Errorf("put start: the namespace has no shard %d of group %d", it.Shard, it.Group)
		}
	}
	if err := s.reach(ctx); err != nil {
		return nil, fmt.Errorf("put start: %w", err)
	}
	grants := make([]store.PutGrant, len(items))
	asked, keys := s.claim(ns, items, grants)
	answers, err := s.exist(ctx, keys)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		_, err = s.currentLocked(n)
	}
	if err != nil {
		s.unclaimLocked(keys)
		return nil, fmt.Errorf("put start: %w", err)
	}
	full := s.cfg.Now().Before(s.fullUntil)
	for i, at := range asked {
		g := &grants[at]
		switch {
		case s.deniedLocked(ns, keys[i]):
			g.Status = store.PutRefused
		case answers[i] == 1:
			g.Status = store.PutExists
			s.stats.PutsExisting++
		case full:
			g.Status = store.PutNoSpace
			s.stats.PutsNoRoom++
		default:
			*g = s.grantLocked(ns, keys[i], items[at].Group, opts.Pin)
		}
		if g.Status != store.PutGranted {
			delete(s.underway, keys[i])
		}
	}
	return grants, nil
}

// claim notes the items' keys as under way, so that no two puts of one are granted.
// It returns the items that are to be asked about, and their keys.
func (s *Store) claim(ns *namespace, items []store.PutItem, grants []store.PutGrant) (asked []int, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range items {
		it := &items[i]
		key := ns.key(it.Group, it.Shard, &it.Hash)
		if _, busy := s.underway[key]; busy {
			grants[i].Status = store.PutUnderway
			continue
		}
		s.underway[key] = struct{}{}
		asked, keys = append(asked, i), append(keys, key)
	}
	return asked, keys
}

func (s *Store) unclaimLocked(keys []string) {
	for _, key := range keys {
		delete(s.underway, key)
	}
}

// grantLocked finds room for a put.
func (s *Store) grantLocked(ns *namespace, key string, group uint32, pin store.Pin) store.PutGrant {
	n := uint64(ns.spec.Groups[group].ShardBytes)
	at, ok := s.staging.take(n)
	if !ok {
		s.stats.PutsNoRoom++
		return store.PutGrant{Status: store.PutNoSpace}
	}
	s.lastID++
	s.puts[s.lastID] = &openPut{ns: ns.id, resets: ns.resets, key: key, at: Range{at, n}, pin: pin}
	return store.PutGrant{Status: store.PutGranted, Ticket: s.lastID, Place: store.Place{Offset: at, Bytes: uint32(n)}}
}

// PutEnd implements store.Store: it stores the shards in the cluster. A false
// answer also means that there was no room in it. The checksum is not stored:
// shards that do not have it are not either.
func (s *Store) PutEnd(ctx context.Context, n store.Namespace, commits []store.PutCommit) ([]bool, error) {
	published := make([]bool, len(commits))
	ending, places, err := s.endings(ctx, n, commits)
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
		defer s.calls.Done()
		done, err := s.publish(ctx, ending)
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

// endings takes the puts out of the books and begins a transfer for them. Puts of
// before a reset are void.
func (s *Store) endings(ctx context.Context, n store.Namespace, commits []store.PutCommit) (ending []*openPut, places []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, err := s.knownLocked(n)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, err
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
		p.sum = commits[i].Checksum
		ending, places = append(ending, p), append(places, i)
	}
	if len(ending) > 0 {
		s.calls.Add(1)
	}
	return ending, places, nil
}

// dropLocked gives a put's range back, and its key free.
func (s *Store) dropLocked(p *openPut) {
	s.staging.give(p.at.Offset, p.at.Bytes)
	delete(s.underway, p.key)
	s.stats.PutsFailed++
}

// PutRevoke implements store.Store.
func (s *Store) PutRevoke(ctx context.Context, _ store.Namespace, tickets []uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put revoke: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tickets {
		if p := s.puts[t]; p != nil {
			delete(s.puts, t)
			s.dropLocked(p)
		}
	}
	return nil
}
