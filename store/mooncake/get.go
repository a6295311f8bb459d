package mooncake

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/mooncake-sidecar/sidecar/store"
)

// getting is one Get under way.
type getting struct {
	ns    *namespace
	name  store.Namespace
	items []store.GetItem
	keys  []string // by item, "" for one that the namespace does not have
	at    []Range  // by item, zero for one without memory
	sums  []uint32
	whole []bool // whether the object arrived in full
	// others are the keys of the chunks' other shards, by item: those must be there
	// too, or the chunk is not.
	others [][]string
	absent []bool // by item: another shard is not there

	// The caller's, under Store.mu.
	left    bool // it does not wait any more
	results []store.GetResult
	err     error
	done    chan struct{}
}

// Get implements store.Store: it reads the shards from the cluster into the
// staging memory. The lease is not used: the cluster leases what it is asked for.
// The checksum is that of the bytes as they arrived.
func (s *Store) Get(ctx context.Context, n store.Namespace, _ store.Lease, items []store.GetItem) ([]store.GetResult, error) {
	ns, err := s.current(ctx, n)
	if err == nil {
		err = s.reach(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	g, err := s.beginGet(ns, n, items)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	go func() {
		defer s.calls.Done()
		s.endGet(g, s.transfer(ctx, g))
	}()
	select {
	case <-g.done:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
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
		ns: ns, name: n, items: items, keys: make([]string, len(items)), at: make([]Range, len(items)), sums: make([]uint32, len(items)),
		whole: make([]bool, len(items)), others: make([][]string, len(items)), absent: make([]bool, len(items)), done: make(chan struct{}),
	}
	for i := range items {
		it := &items[i]
		if !ns.has(it.Group, it.Shard) {
			continue
		}
		g.keys[i] = ns.key(it.Group, it.Shard, &it.Hash)
		for shard := range uint32(ns.shards(it.Group)) {
			if shard != it.Shard {
				g.others[i] = append(g.others[i], ns.key(it.Group, shard, &it.Hash))
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.currentLocked(n); err != nil {
		return nil, err
	}
	for i := range items {
		if g.keys[i] == "" || s.deniedLocked(ns, g.keys[i]) {
			continue
		}
		bytes := uint64(ns.spec.Groups[items[i].Group].ShardBytes)
		if at, ok := s.staging.take(bytes); ok {
			g.at[i] = Range{at, bytes}
		} else {
			s.stats.GetsNoRoom++
		}
	}
	s.calls.Add(1)
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
		batch, left = getBatch(g, left)
		err = s.transferBatch(ctx, g, batch)
	}
	asking.Wait()
	if err == nil {
		err = asked
	}
	return err
}

// getBatch divides what is left into the next call and the rest. A key is in a
// call once: see CheckObjects.
func getBatch(g *getting, left []int) (batch, rest []int) {
	seen, bytes := map[string]struct{}{}, uint64(0)
	for _, i := range left {
		_, twice := seen[g.keys[i]]
		if !twice && len(batch) < MaxTransfer && (len(batch) == 0 || bytes+g.at[i].Bytes <= maxBatchBytes) {
			seen[g.keys[i]] = struct{}{}
			batch, bytes = append(batch, i), bytes+g.at[i].Bytes
		} else {
			rest = append(rest, i)
		}
	}
	return batch, rest
}

func (s *Store) transferBatch(ctx context.Context, g *getting, batch []int) error {
	objects := make([]Object, len(batch))
	for k, i := range batch {
		objects[k] = Object{Key: g.keys[i], Range: g.at[i]}
	}
	answers, err := s.cfg.Engine.Get(ctx, objects)
	if err == nil && allGone(answers) {
		// The master, or the nodes that have these objects on their disks.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
		err = s.askNothing(limited)
		cancel()
		if errors.Is(err, ErrNoTurn) {
			err = nil // misses, all the same
		}
	}
	s.mu.Lock()
	err = s.noteLocked("get", answers, err)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for k, i := range batch {
		r := g.at[i]
		if answers[k] == Answer(r.Bytes) {
			g.whole[i] = true
			g.sums[i] = crc32.Checksum(s.cfg.Memory[r.Offset:][:r.Bytes], castagnoli)
		}
		if answers[k] >= 0 && !g.whole[i] || answers[k].Code() == CodeInvalidParams {
			s.mu.Lock()
			s.stats.GetsOtherLength++
			s.mu.Unlock()
		}
	}
	return nil
}

// askOthers asks whether the chunks' other shards are there.
func (s *Store) askOthers(ctx context.Context, g *getting) error {
	var keys []string
	var owners []int
	for i, others := range g.others {
		if g.at[i].Bytes == 0 {
			continue
		}
		for _, key := range others {
			keys, owners = append(keys, key), append(owners, i)
		}
	}
	answers, err := s.exist(ctx, keys)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		// What a reset has removed meanwhile is not given out.
		_, err = s.currentLocked(g.name)
	}
	results := make([]store.GetResult, len(g.items))
	for i := range results {
		r := g.at[i]
		if err == nil && !g.left && g.whole[i] && !g.absent[i] && !s.deniedLocked(g.ns, g.keys[i]) {
			s.lastID++
			s.refs[s.lastID] = r
			results[i] = store.GetResult{
				Status: store.GetReady, Ref: s.lastID, Place: store.Place{Offset: r.Offset, Bytes: uint32(r.Bytes)},
				Checksum: g.sums[i], Tier: store.TierRemote,
			}
			s.stats.Gets++
			s.stats.GetBytes += r.Bytes
			continue
		}
		results[i].Status = store.GetAbsent
		s.stats.GetsAbsent++
		if r.Bytes > 0 {
			s.staging.give(r.Offset, r.Bytes)
		}
	}
	g.results, g.err = results, err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, refs []uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		if r, ok := s.refs[ref]; ok {
			delete(s.refs, ref)
			s.staging.give(r.Offset, r.Bytes)
		}
	}
	return nil
}
