package mooncake

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// getting is one Get under way.
type getting struct {
	ns    *namespace
	name  store.Namespace
	items []store.GetItem
	at    []Range  // by item, zero without memory for it, or a shard of that number
	sums  []uint32 // by item
	whole []bool   // by item: the object arrived in full
	// others are the keys of the chunks' other shards, by item: those must be there
	// too, or the chunk is not.
	others [][]string
	absent []bool // by item: another shard is not there

	// The caller's, under Client.mu.
	left    bool // it does not wait any more
	results []store.GetResult
	err     error
	done    chan struct{}
}

// Get implements store.Store: it reads the shards from the cluster into the
// staging memory. The lease is not used: the cluster leases what it is asked for.
// The checksum is that of the bytes as they arrived.
func (s *Store) Get(ctx context.Context, n store.Namespace, _ store.Lease, items []store.GetItem) ([]store.GetResult, error) {
	ns, err := s.client.current(ctx, n)
	if err == nil {
		err = s.client.reach(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	g, err := s.beginGet(ns, n, items)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	go func() {
		defer s.client.calls.Done()
		s.endGet(g, s.transfer(ctx, g))
	}()
	select {
	case <-g.done:
	case <-ctx.Done():
		s.client.mu.Lock()
		defer s.client.mu.Unlock()
		if g.results == nil && g.err == nil {
			g.left = true
			return nil, fmt.Errorf("get: %w", ctx.Err())
		}
	}
	if g.err != nil {
		return nil, fmt.Errorf("get: %w", g.err)
	}
	return g.results, nil
}

// beginGet finds memory for the items.
func (s *Store) beginGet(ns *namespace, n store.Namespace, items []store.GetItem) (*getting, error) {
	g := &getting{
		ns: ns, name: n, items: items, at: make([]Range, len(items)), sums: make([]uint32, len(items)),
		whole: make([]bool, len(items)), others: make([][]string, len(items)), absent: make([]bool, len(items)), done: make(chan struct{}),
	}
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if _, err := s.client.currentLocked(n); err != nil {
		return nil, err
	}
	for i := range items {
		it := &items[i]
		if !ns.has(it.Group, it.Shard) || s.client.deniedLocked(ns, it.Group, &it.Hash, ns.key(it.Group, it.Shard, &it.Hash)) {
			continue
		}
		bytes := uint64(ns.spec.Groups[it.Group].ShardBytes)
		at, ok := s.staging.take(bytes)
		if !ok {
			s.client.stats.GetsNoRoom++
			continue
		}
		g.at[i] = Range{at, bytes}
		for shard := range uint32(ns.shards(it.Group)) {
			if shard != it.Shard {
				g.others[i] = append(g.others[i], ns.key(it.Group, shard, &it.Hash))
			}
		}
	}
	s.client.calls.Add(1)
	return g, nil
}

// transfer reads the objects, and asks for the other shards meanwhile.
func (s *Store) transfer(ctx context.Context, g *getting) error {
	var asking sync.WaitGroup
	var asked error
	asking.Go(func() { asked = s.askOthers(ctx, g) })
	var left []int
	for i := range g.at {
		if g.at[i].Bytes > 0 {
			left = append(left, i)
		}
	}
	var err error
	for len(left) > 0 && err == nil {
		var batch []int
		batch, left = withoutTwins(g.items, left)
		shards := make([]Shard, len(batch))
		for k, i := range batch {
			shards[k] = Shard{Group: g.items[i].Group, Shard: g.items[i].Shard, Hash: g.items[i].Hash, At: g.at[i]}
		}
		var whole []bool
		whole, err = s.client.Get(ctx, g.name, shards)
		for k, i := range batch {
			g.whole[i], g.sums[i] = whole[k], shards[k].Sum
		}
	}
	asking.Wait()
	if err == nil {
		err = asked
	}
	return err
}

// withoutTwins divides what is left into items of which no two are the same, and
// the rest: see CheckObjects.
func withoutTwins(items []store.GetItem, left []int) (batch, rest []int) {
	seen := make(map[store.GetItem]struct{}, len(left))
	for _, i := range left {
		if _, twice := seen[items[i]]; twice {
			rest = append(rest, i)
			continue
		}
		seen[items[i]] = struct{}{}
		batch = append(batch, i)
	}
	return batch, rest
}

// askOthers asks whether the chunks' other shards are there.
func (s *Store) askOthers(ctx context.Context, g *getting) error {
	var keys []string
	var owners []int
	for i, others := range g.others {
		for _, key := range others {
			keys, owners = append(keys, key), append(owners, i)
		}
	}
	answers, err := s.client.exist(ctx, keys)
	s.client.mu.Lock()
	s.client.leasedLocked(g.name)
	s.client.mu.Unlock()
	if err != nil {
		return err
	}
	for k, a := range answers {
		if a != 1 {
			g.absent[owners[k]] = true
		}
	}
	return nil
}

// endGet hands what arrived to the caller, or gives the memory back.
func (s *Store) endGet(g *getting, err error) {
	defer close(g.done)
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if err == nil {
		// What a reset has removed meanwhile is not given out.
		_, err = s.client.currentLocked(g.name)
	}
	results := make([]store.GetResult, len(g.items))
	for i := range results {
		r := g.at[i]
		if err == nil && !g.left && g.whole[i] && !g.absent[i] {
			s.lastID++
			s.refs[s.lastID] = r
			results[i] = store.GetResult{
				Status: store.GetReady, Ref: s.lastID, Place: store.Place{Offset: r.Offset, Bytes: uint32(r.Bytes)},
				Checksum: g.sums[i], Tier: store.TierRemote,
			}
			s.client.stats.Gets++
			continue
		}
		results[i].Status = store.GetAbsent
		s.client.stats.GetsAbsent++
		if r.Bytes > 0 {
			s.staging.give(r.Offset, r.Bytes)
		}
	}
	g.results, g.err = results, err
}

// AwaitArrival implements store.Store: nothing is ever on its way.
func (s *Store) AwaitArrival(ctx context.Context, _ store.Namespace, _ store.ChunkKey, _ time.Duration) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("await arrival: %w", err)
	}
	return nil
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, refs []uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	for _, ref := range refs {
		if r, ok := s.refs[ref]; ok {
			delete(s.refs, ref)
			s.staging.give(r.Offset, r.Bytes)
		}
	}
	return nil
}
