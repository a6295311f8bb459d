package mooncake

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

const (
	// fedOwed is up to how many keys that are owed those of chunks that wait are added
	// to them. The rest is for what calls leave.
	fedOwed = maxOwed / 2
	// maxWaiting bounds the chunks that wait, of some 80 bytes each.
	maxWaiting = 1 << 20
)

// Owe has a chunk removed that is not to be used any more: from now on it is not
// found here, and is removed with one of the next calls. It waits for nothing. However
// many there are, nothing else is removed for them. False: too many wait, and nothing
// was done.
func (c *Client) Owe(n store.Namespace, group uint32, hash *kv.Hash) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ns, err := c.currentLocked(n)
	if err != nil || int(group) >= len(ns.keys.Prefixes) {
		return true // what a reset has removed, or nobody has
	}
	at := chunk{ns.id, group, *hash}
	if _, again := c.owed.waiting[at]; again || c.feedLocked(at) {
		return true
	}
	return c.waitLocked(at, maxWaiting)
}

// waitLocked has a chunk wait, unless as many wait as may.
func (c *Client) waitLocked(at chunk, most int) bool {
	if _, again := c.owed.waiting[at]; again || c.namespaces[at.ns-1].dirty { // all of which goes
		return true
	}
	if len(c.owed.waiting) >= most {
		return false
	}
	if c.owed.waiting == nil {
		c.owed.waiting = map[chunk]struct{}{}
	}
	c.owed.waiting[at] = struct{}{}
	return true
}

// feedLocked makes a chunk's keys owed, if there is room for them.
func (c *Client) feedLocked(at chunk) bool {
	ns := c.namespaces[at.ns-1]
	if len(c.owed.keys)+ns.shards(at.group) > fedOwed {
		return false
	}
	for _, key := range ns.chunkKeys(at.group, &at.hash) {
		c.owed.keys[key] = ns
	}
	return true
}

// feedWaitingLocked makes the keys of chunks that wait owed, as many as there is room
// for.
func (c *Client) feedWaitingLocked() {
	for at := range c.owed.waiting {
		if !c.feedLocked(at) {
			return
		}
		delete(c.owed.waiting, at)
	}
	c.owed.waiting = nil // a map keeps its memory
}

// stopWaitingLocked drops the chunks of a namespace of which all goes.
func (c *Client) stopWaitingLocked(id store.NamespaceID) {
	for at := range c.owed.waiting {
		if at.ns == id {
			delete(c.owed.waiting, at)
		}
	}
}
