package mooncake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

const (
	defaultLease = 10 * time.Second
	// owedPause is between two attempts to remove what has a lease.
	owedPause = time.Second
	// maxOwed bounds the keys that are owed; with more, their namespace is.
	maxOwed = 1 << 16
)

// owed are removals that could not be made: an object has a lease of somebody's, or
// the master did not answer. What they are about is denied until they are made: it
// is absent, and takes no puts, since those would not replace it. Whole namespaces
// are owed by namespace.dirty. A restart forgets what is owed.
type owed struct {
	keys   map[string]*namespace
	until  time.Time // no attempt before
	making bool
}

// deniedLocked tells whether a key is not to be used.
func (s *Store) deniedLocked(ns *namespace, key string) bool {
	if ns.dirty {
		return true
	}
	_, denied := s.owed.keys[key]
	return denied
}

func (s *Store) isDirty(ns *namespace) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ns.dirty
}

// oweLocked notes that a key of the namespace is to be removed.
func (s *Store) oweLocked(ns *namespace, key string) {
	if len(s.owed.keys) < maxOwed {
		s.owed.keys[key] = ns
		return
	}
	s.soilLocked(ns)
}

// soilLocked notes that all that the cluster has of the namespace is to be removed.
// What has a lease now does not have it for ever: a removal later finds that.
func (s *Store) soilLocked(ns *namespace) {
	ns.dirty, ns.cleanFrom = true, s.cfg.Now().Add(s.cfg.Lease)
}

// remove removes keys of a namespace, in as many calls as it takes. An object that
// is gone is as good as one that was removed, and one that is owed, too. It goes on
// after an error, and returns the first.
func (s *Store) remove(ctx context.Context, ns *namespace, keys []string) (removed int, err error) {
	err = s.probe(ctx)
	for from := 0; from < len(keys); from += MaxKeys {
		batch := keys[from:min(from+MaxKeys, len(keys))]
		var answers []Answer
		var failed error
		if err == nil || !unreached(err) {
			answers, failed = s.cfg.Engine.Remove(ctx, batch)
			s.mu.Lock()
			failed = s.noteLocked("remove", answers, failed)
			s.mu.Unlock()
		}
		n, other := s.settleRemoval(ns, batch, answers)
		removed += n
		if err == nil {
			err = cmp.Or(failed, other)
		}
	}
	return removed, err
}

// unreached tells whether a call's error says the same of the next call.
func unreached(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// settleRemoval notes what became of keys; what was not answered is owed.
func (s *Store) settleRemoval(ns *namespace, keys []string, answers []Answer) (removed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		if i >= len(answers) {
			s.oweLocked(ns, key)
			continue
		}
		switch code := answers[i].Code(); code {
		case 0:
			removed++
			delete(s.owed.keys, key)
		case CodeNotFound:
			delete(s.owed.keys, key)
		case CodeHasLease:
			if _, again := s.owed.keys[key]; !again {
				removed++
			}
			s.oweLocked(ns, key)
			s.owed.until = s.cfg.Now().Add(owedPause)
		default:
			s.oweLocked(ns, key)
			if err == nil {
				err = &Error{Op: "remove", Code: code, Text: key}
			}
		}
	}
	return removed, err
}

// makeUp makes the removals that are owed, when it is time. It fails when the
// cluster can't be reached.
func (s *Store) makeUp(ctx context.Context) error {
	s.mu.Lock()
	now := s.cfg.Now()
	var dirty []*namespace
	for _, ns := range s.namespaces {
		if ns.dirty {
			dirty = append(dirty, ns)
		}
	}
	if s.owed.making || now.Before(s.owed.until) || len(dirty)+len(s.owed.keys) == 0 {
		s.mu.Unlock()
		return nil
	}
	s.owed.making, s.owed.until = true, now.Add(owedPause)
	byNamespace, n := map[*namespace][]string{}, 0
	for key, ns := range s.owed.keys {
		if n++; n > MaxKeys {
			break // the next time
		}
		byNamespace[ns] = append(byNamespace[ns], key)
	}
	s.mu.Unlock()
	var first error
	note := func(err error) {
		if first == nil || unreached(err) {
			first = err
		}
	}
	for _, ns := range dirty {
		if first == nil || !unreached(first) {
			_, err := s.removeAll(ctx, ns)
			note(err)
		}
	}
	for ns, keys := range byNamespace {
		if first == nil || !unreached(first) {
			_, err := s.remove(ctx, ns, keys)
			note(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed.making = false
	if first == nil {
		return nil
	}
	if unreached(first) {
		s.owed.until = time.Time{} // the breaker says when
		return first
	}
	s.cfg.Log.Warn("what is to be removed from the cluster is there yet; it is not used", "error", first)
	return nil
}

// removeAll removes what the cluster has of a dirty namespace, which is clean when
// nothing is left.
func (s *Store) removeAll(ctx context.Context, ns *namespace) (shards int, err error) {
	s.mu.Lock()
	resets, last := ns.resets, !s.cfg.Now().Before(ns.cleanFrom)
	from := ns.cleanFrom
	s.mu.Unlock()
	shards, err = s.cfg.Engine.RemovePrefix(ctx, ns.keys.Scope)
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.noteLocked("remove", nil, err)
	if err != nil {
		return shards, err
	}
	// What came meanwhile, by a reset or a removal that failed, is not done with this.
	if last && shards == 0 && ns.resets == resets && ns.cleanFrom.Equal(from) {
		ns.dirty = false
	}
	return shards, nil
}

// Reset removes all chunks of the namespace that its keys tell from others', and
// makes its name stale. What is stored on its way through other nodes may stay: a
// reset needs an engine that is paused. Chunks may have leases of others' and stay
// for their length, so the namespace is empty and takes nothing for as long, and
// longer where the cluster does not answer: an error does not bring them back.
func (s *Store) Reset(ctx context.Context, n store.Namespace) (shards int, err error) {
	s.mu.Lock()
	ns, err := s.currentLocked(n)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.mu.Unlock()
		return 0, fmt.Errorf("reset: %w", err)
	}
	ns.resets++
	s.soilLocked(ns)
	s.mu.Unlock()
	if err = s.probe(ctx); err == nil {
		shards, err = s.removeAll(ctx, ns)
	}
	if err != nil {
		return shards, fmt.Errorf("reset: %w", err)
	}
	return shards, nil
}
