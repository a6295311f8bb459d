package mooncake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

const (
	// DefaultLease is how long a master leases what was asked for, unless told
	// otherwise (default_kv_lease_ttl).
	DefaultLease = 10 * time.Second
	// owedPause is between two attempts to remove what has a lease.
	owedPause = time.Second
	// maxOwed bounds the keys that are owed; with more, their chunks wait.
	maxOwed = 1 << 16
	// leaseMargin is the part of a lease by which one more is waited for.
	leaseMargin = 4
)

// owed are removals that could not be made: an object has a lease of somebody's, or
// the master did not answer. What they are about is denied until they are made: it
// is absent, and takes no puts, since those would not replace it. Whole namespaces
// are owed by namespace.dirty. Who is to owe it after a restart keeps notes.
type owed struct {
	keys map[string]*namespace
	// waiting are chunks whose keys are owed when there is room, see Owe; of no
	// namespace that is dirty.
	waiting map[chunk]struct{}

	until  time.Time // no attempt before
	making bool
}

// deniedLocked tells whether a key, that of a chunk's shard, is not to be used.
func (c *Client) deniedLocked(ns *namespace, group uint32, hash *kv.Hash, key string) bool {
	if ns.dirty {
		return true
	}
	if _, denied := c.owed.keys[key]; denied || len(c.owed.waiting) == 0 {
		return denied
	}
	_, denied := c.owed.waiting[chunk{ns.id, group, *hash}]
	return denied
}

func (c *Client) isDirty(ns *namespace) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ns.dirty
}

// ErrManyOwed reports chunks that can't be removed now: too many others are being
// removed.
var ErrManyOwed = errors.New("too many removals are under way")

// doomed are keys of a namespace that are to be removed, and the chunk that each is of;
// no chunks for keys that are owed already.
type doomed struct {
	ns     *namespace
	keys   []string
	chunks []chunk
}

// add adds the keys of a chunk.
func (d *doomed) add(group uint32, hash *kv.Hash) {
	for _, key := range d.ns.chunkKeys(group, hash) {
		d.keys, d.chunks = append(d.keys, key), append(d.chunks, chunk{d.ns.id, group, *hash})
	}
}

// oweLocked notes that a key is to be removed. Where there is no room for it its chunk
// waits, and nothing but that goes.
func (c *Client) oweLocked(d *doomed, i int) {
	if _, again := c.owed.keys[d.keys[i]]; again || len(c.owed.keys) < maxOwed {
		c.owed.keys[d.keys[i]] = d.ns
		return
	}
	// Those who may begin a removal are refused long before this.
	if i >= len(d.chunks) || !c.waitLocked(d.chunks[i], 2*maxWaiting) {
		c.soilLocked(d.ns)
	}
}

// soilLocked notes that all that the cluster has of the namespace is to be removed.
// What has a lease now does not have it for ever: a removal later finds that. What
// others lease again and again none finds that goes by the beginning of keys, and
// none says so; keys that were seen are owed one by one, since of those it is said.
func (c *Client) soilLocked(ns *namespace) {
	ns.dirty, ns.told, ns.cleanFrom = true, false, time.Time{}
	ns.soils++
	c.stopWaitingLocked(ns.id)
	for _, key := range ns.seen.keys {
		if len(c.owed.keys) < maxOwed {
			c.owed.keys[key] = ns
		}
	}
	ns.seen = seen{}
}

// leasedLocked follows a call that leases what it asks for. One of before a reset
// may have leased after it what is to be removed.
func (c *Client) leasedLocked(n store.Namespace) {
	if ns, err := c.knownLocked(n); err == nil && ns.resets != n.ResetEpoch {
		c.soilLocked(ns)
	}
}

// owesLocked tells whether keys of a namespace are to be removed.
func (c *Client) owesLocked(ns *namespace) bool {
	for _, of := range c.owed.keys {
		if of == ns {
			return true
		}
	}
	return false
}

// Owes tells whether anything is to be removed yet.
func (c *Client) Owes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	dirty := func(ns *namespace) bool { return ns.dirty }
	return len(c.owed.keys)+len(c.owed.waiting) > 0 || slices.ContainsFunc(c.namespaces, dirty)
}

// Soil makes the namespace one of which all that the cluster has is to be removed
// before it is used: it was reset, and nobody knows whether that came through.
func (c *Client) Soil(n store.Namespace) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ns, err := c.currentLocked(n)
	if err != nil {
		return fmt.Errorf("soil: %w", err)
	}
	c.soilLocked(ns)
	return nil
}

// Clean tells whether the cluster has nothing of before the namespace's last reset,
// as far as can be known.
func (c *Client) Clean(n store.Namespace) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ns, err := c.currentLocked(n)
	return err == nil && !ns.dirty
}

// remove removes keys, in as many calls as it takes. An object that is gone is as good
// as one that was removed, and one that is owed, too. It goes on after an error, and
// returns the first.
func (c *Client) remove(ctx context.Context, d *doomed) (removed int, err error) {
	err = c.probe(ctx)
	for from := 0; from < len(d.keys); from += MaxKeys {
		to := min(from+MaxKeys, len(d.keys))
		batch := &doomed{ns: d.ns, keys: d.keys[from:to]}
		if d.chunks != nil {
			batch.chunks = d.chunks[from:to]
		}
		var answers []Answer
		var failed error
		if err == nil || !unreached(err) {
			answers, failed = c.cfg.Engine.Remove(ctx, batch.keys)
			c.mu.Lock()
			failed = c.noteLocked("remove", answers, failed)
			c.mu.Unlock()
		}
		n, other := c.settleRemoval(batch, answers)
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
func (c *Client) settleRemoval(d *doomed, answers []Answer) (removed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, key := range d.keys {
		if i >= len(answers) {
			c.oweLocked(d, i)
			continue
		}
		switch code := answers[i].Code(); code {
		case 0:
			removed++
			delete(c.owed.keys, key)
		case CodeNotFound:
			delete(c.owed.keys, key)
		case CodeHasLease:
			if _, again := c.owed.keys[key]; !again {
				removed++
			}
			c.oweLocked(d, i)
			c.owed.until = c.cfg.Now().Add(owedPause)
		default:
			c.oweLocked(d, i)
			if err == nil {
				err = &Error{Op: "remove", Code: code, Text: key}
			}
		}
	}
	return removed, err
}

// makeUp makes the removals that are owed, when it is time. It fails when the
// cluster can't be reached.
func (c *Client) makeUp(ctx context.Context) error {
	c.mu.Lock()
	now := c.cfg.Now()
	var dirty []*namespace
	for _, ns := range c.namespaces {
		if ns.dirty {
			dirty = append(dirty, ns)
		}
	}
	if c.owed.making || now.Before(c.owed.until) || len(dirty)+len(c.owed.keys)+len(c.owed.waiting) == 0 {
		c.mu.Unlock()
		return nil
	}
	c.owed.making, c.owed.until = true, now.Add(owedPause)
	c.feedWaitingLocked()
	byNamespace, n := map[*namespace][]string{}, 0
	for key, ns := range c.owed.keys {
		if n++; n > MaxKeys {
			break // the next time
		}
		byNamespace[ns] = append(byNamespace[ns], key)
	}
	c.mu.Unlock()
	var first error
	note := func(err error) {
		if first == nil || unreached(err) {
			first = err
		}
	}
	for ns, keys := range byNamespace { // a namespace is clean when it owes nothing
		if first == nil || !unreached(first) {
			_, err := c.remove(ctx, &doomed{ns: ns, keys: keys})
			note(err)
		}
	}
	for _, ns := range dirty {
		if first == nil || !unreached(first) {
			_, err := c.removeAll(ctx, ns)
			note(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed.making = false
	if first == nil {
		return nil
	}
	if unreached(first) {
		c.owed.until = time.Time{} // the breaker says when
		return first
	}
	c.cfg.Log.Warn("what is to be removed from the cluster is there yet; it is not used", "error", first)
	return nil
}

// removeAll removes what the cluster has of a dirty namespace, which is clean when
// nothing is left.
func (c *Client) removeAll(ctx context.Context, ns *namespace) (shards int, err error) {
	c.mu.Lock()
	soils, last := ns.soils, !ns.cleanFrom.IsZero() && !c.cfg.Now().Before(ns.cleanFrom)
	c.mu.Unlock()
	shards, err = c.cfg.Engine.RemovePrefix(ctx, ns.keys.Scope)
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := err != nil && !errors.Is(err, ErrNoTurn)
	err = c.noteLocked("remove", nil, err)
	switch {
	case silent:
		// A master that was stopped answers what it was asked before when it goes on.
		ns.cleanFrom = time.Time{}
	case err != nil || ns.soils != soils:
		// What came meanwhile is not done with this.
	case ns.cleanFrom.IsZero():
		ns.cleanFrom = c.cfg.Now()
		if ns.cleanFrom.Before(c.straysUntil) {
			ns.cleanFrom = c.straysUntil
		}
		ns.cleanFrom = ns.cleanFrom.Add(c.cfg.Lease + c.cfg.Lease/leaseMargin)
	case !last || shards > 0:
	case !c.owesLocked(ns):
		ns.dirty = false
	case !ns.told:
		ns.told = true
		c.cfg.Log.Warn("objects of before a reset are leased again and again by other nodes; until they are gone, the cluster is not used for the model: stop its other engines for the length of a lease",
			"model", ns.spec.Model)
	}
	return shards, err
}

// Reset removes all chunks of the namespace that its keys tell from others', and
// makes its name stale. What is stored on its way through other nodes may stay: a
// reset needs an engine that is paused. Chunks may have leases of others' and stay
// for their length, so the namespace is empty and takes nothing for as long, and
// longer where the cluster does not answer: an error does not bring them back, nor
// does a context that is done.
func (c *Client) Reset(ctx context.Context, n store.Namespace) (shards int, err error) {
	c.mu.Lock()
	ns, err := c.currentLocked(n)
	if err != nil {
		c.mu.Unlock()
		return 0, fmt.Errorf("reset: %w", err)
	}
	ns.resets++
	c.soilLocked(ns)
	c.mu.Unlock()
	if err = c.probe(ctx); err == nil {
		shards, err = c.removeAll(ctx, ns)
	}
	if err != nil {
		return shards, fmt.Errorf("reset: %w", err)
	}
	return shards, nil
}

// Remove removes chunks by their hash, in every group, and returns how many shards
// there were. What could not be removed is not found here any more, and is removed
// when it can be. However many there are, nothing else is removed for them: with
// ErrManyOwed the last ones stay.
func (c *Client) Remove(ctx context.Context, n store.Namespace, hashes []kv.Hash) (shards int, err error) {
	if err = ctx.Err(); err != nil {
		return 0, fmt.Errorf("remove: %w", err)
	}
	for from := 0; from < len(hashes); {
		d, took, beginning := c.doom(context.WithoutCancel(ctx), n, hashes[from:]) // what was begun is owed
		if beginning != nil {
			err = errors.Join(err, beginning)
			break
		}
		removed, failed := c.remove(ctx, d)
		shards, from, err = shards+removed, from+took, cmp.Or(err, failed)
	}
	if err != nil {
		return shards, fmt.Errorf("remove: %w", err)
	}
	return shards, nil
}

// doom takes the first hashes for one call, if their chunks may wait.
func (c *Client) doom(ctx context.Context, n store.Namespace, hashes []kv.Hash) (*doomed, int, error) {
	ns, err := c.current(ctx, n)
	if err != nil {
		return nil, 0, err
	}
	c.mu.Lock()
	full := len(c.owed.waiting) >= maxWaiting
	c.mu.Unlock()
	if full {
		return nil, 0, fmt.Errorf("%w; %d chunks stay", ErrManyOwed, len(hashes)*len(ns.spec.Groups))
	}
	d, took := &doomed{ns: ns}, 0
	for ; took < len(hashes) && len(d.keys) < MaxKeys; took++ {
		for g := range uint32(len(ns.spec.Groups)) {
			d.add(g, &hashes[took])
		}
	}
	return d, took, nil
}
