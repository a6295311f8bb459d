package embedded

import (
	"cmp"
	"context"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// link leads from a chunk to one behind it in its chain, by key digests.
type link struct{ parent, child uint64 }

// removeChain drops the chunks of the scope's hashes and all behind them, in
// memory and on the disk: a chain may go from one to the other and back. A chunk
// names its predecessor only, so that all of the namespace have to be looked at.
// below is what keeps the disk from knowing all of it.
func (m *Master) removeChain(ctx context.Context, done *Removal, sel *selection) (below, err error) {
	c, err := m.lookAtChain(ctx, sel)
	if err != nil {
		return nil, err
	}
	return c.below, m.dropChain(ctx, done, sel, c)
}

// chain is what a removal by chain has found.
type chain struct {
	reached map[uint64]struct{} // key digests
	onDisk  []disk.Link         // of those, what the disk has
	// inMemory are those that memory has: the disk may be about to have them, or
	// have them under another tag.
	inMemory []disk.Link
	below    error
}

// lookAtChain finds a chain. Memory comes first: what waits to be written is there
// until the disk knows of it.
//
// REQUIRES: the disk holds what is meant (see holdBelow).
func (m *Master) lookAtChain(ctx context.Context, sel *selection) (*chain, error) {
	var c chain
	links, err := m.memoryLinks(ctx, sel, &c)
	if err != nil {
		return nil, err
	}
	links = m.diskLinks(links, sel, &c)
	c.reached = m.reach(links, sel)
	missed := func(l disk.Link) bool {
		_, in := c.reached[l.Hash^sel.scopeOf(&l)]
		return !in
	}
	c.onDisk = slices.DeleteFunc(c.onDisk, missed)
	c.inMemory = slices.DeleteFunc(c.inMemory, missed)
	return &c, nil
}

// dropChain drops what was found of a chain.
func (m *Master) dropChain(ctx context.Context, done *Removal, sel *selection, c *chain) error {
	done.OnDisk = m.forgetHashes(sel) // also if the disk does not know them yet
	if len(c.onDisk) > 0 {
		done.OnDisk += m.lower.tier.ForgetLinks(sel.tagText, c.onDisk)
	}
	if len(c.inMemory) > 0 {
		// Memory may drop one before it is looked through again.
		done.OnDisk += m.lower.tier.ForgetLinks(nil, c.inMemory)
	}
	// Some may have come up since the first look.
	return m.removeScanned(ctx, done, sel, func(r *record) bool {
		_, in := c.reached[keyDigest(store.NamespaceID(r.namespace), uint32(r.group), &r.hash)]
		return in && sel.has(r)
	})
}

// memoryLinks lists the links of the namespace's chunks in memory.
func (m *Master) memoryLinks(ctx context.Context, sel *selection, c *chain) (links []link, err error) {
	for at, more := uint32(0), true; more; at += m.opts.steps.remove {
		m.betweenSteps()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		links, more = m.memoryLinksAt(links, sel, c, at)
	}
	return links, nil
}

func (m *Master) memoryLinksAt(links []link, sel *selection, c *chain, at uint32) ([]link, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	end := min(at+m.opts.steps.remove, m.fresh)
	for rec := at; rec < end; rec++ {
		if m.passedOverLocked(rec) {
			continue
		}
		r := m.seg.peekRecord(rec)
		if r.namespace != sel.namespace {
			continue
		}
		if r.parent != 0 {
			links = append(links, link{parent: r.parent, child: m.keyOfLocked(rec)})
		}
		if m.disk() != nil && sel.has(&r) {
			key := m.diskKeyOf(&r)
			c.inMemory = append(c.inMemory, disk.LinkOf(&key))
		}
	}
	return links, end < m.fresh
}

// diskLinks adds those of the chunks on the disk.
func (m *Master) diskLinks(links []link, sel *selection, c *chain) []link {
	if m.disk() == nil {
		return links
	}
	c.onDisk, c.below = m.lower.tier.Links(*sel.digest)
	for i := range c.onDisk {
		if l := &c.onDisk[i]; l.Parent != 0 {
			scope := sel.scopeOf(l)
			links = append(links, link{parent: l.Parent ^ scope, child: l.Hash ^ scope})
		}
	}
	return links
}

// scopeOf turns the disk's words for a chunk and its predecessor into key digests.
func (s *selection) scopeOf(l *disk.Link) uint64 {
	return scopeDigest(store.NamespaceID(s.namespace), uint32(l.Group))
}

// reach follows the links from the scope's hashes, in every group.
func (m *Master) reach(links []link, sel *selection) map[uint64]struct{} {
	slices.SortFunc(links, func(a, b link) int { return cmp.Compare(a.parent, b.parent) })
	reached := map[uint64]struct{}{}
	var next []uint64
	add := func(key uint64) {
		if _, again := reached[key]; !again {
			reached[key] = struct{}{}
			next = append(next, key)
		}
	}
	for i := range sel.scope.Hashes {
		for group := range sel.groups {
			add(keyDigest(store.NamespaceID(sel.namespace), uint32(group), &sel.scope.Hashes[i]))
		}
	}
	for len(next) > 0 {
		key := next[len(next)-1]
		next = next[:len(next)-1]
		at, _ := slices.BinarySearchFunc(links, key, func(l link, key uint64) int { return cmp.Compare(l.parent, key) })
		for ; at < len(links) && links[at].parent == key; at++ {
			add(links[at].child)
		}
	}
	return reached
}
