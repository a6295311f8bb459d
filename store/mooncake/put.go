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
	shard  Shard // without its sum until it ends
	pin    store.Pin
}

// PutStart implements store.Store. Chunks live as long as the cluster keeps them:
// it knows no time to live, and no salt tags.
func (s *Store) PutStart(ctx context.Context, n store.Namespace, opts store.PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	ns, err := s.client.current(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("put start: %w", err)
	}
	for i := range items {
		if it := &items[i]; !ns.has(it.Group, it.Shard) {
			return nil, fmt.Errorf("put start: the namespace has no shard %d of group %d", it.Shard, it.Group)
		}
	}
	if err := s.client.reach(ctx); err != nil {
		return nil, fmt.Errorf("put start: %w", err)
	}
	grants := make([]store.PutGrant, len(items))
	asked, keys := s.claim(ns, items, grants)
	answers, err := s.client.exist(ctx, keys)
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	s.client.leasedLocked(n)
	if err == nil {
		_, err = s.client.currentLocked(n)
	}
	if err != nil {
		s.unclaimLocked(keys)
		return nil, fmt.Errorf("put start: %w", err)
	}
	full := s.client.cfg.Now().Before(s.client.fullUntil)
	for i, at := range asked {
		g := &grants[at]
		switch {
		case s.client.deniedLocked(ns, items[at].Group, &items[at].Hash, keys[i]):
			g.Status = store.PutRefused
		case answers[i] == 1:
			g.Status = store.PutExists
			s.client.stats.PutsExisting++
		case full:
			g.Status = store.PutNoSpace
			s.client.stats.PutsNoRoom++
		default:
			*g = s.grantLocked(ns, keys[i], &items[at], opts.Pin)
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
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
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
func (s *Store) grantLocked(ns *namespace, key string, it *store.PutItem, pin store.Pin) store.PutGrant {
	n := uint64(ns.spec.Groups[it.Group].ShardBytes)
	at, ok := s.staging.take(n)
	if !ok {
		s.client.stats.PutsNoRoom++
		return store.PutGrant{Status: store.PutNoSpace}
	}
	s.lastID++
	s.puts[s.lastID] = &openPut{ns: ns.id, resets: ns.resets, key: key, pin: pin, shard: Shard{Group: it.Group, Shard: it.Shard, Hash: it.Hash, At: Range{at, n}}}
	return store.PutGrant{Status: store.PutGranted, Ticket: s.lastID, Place: store.Place{Offset: at, Bytes: uint32(n)}}
}
