package embedded

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// spaceOwner names a namespace among the owners of quotas.
func spaceOwner(s int) string { return fmt.Sprintf("space %d", s) }

// quotaOf tells whether a quota holds for chunks of a namespace and a tag.
func (c *chaos) quotaOf(s int, tag string) bool {
	return c.quotas[spaceOwner(s)] > 0 || tag != "" && c.quotas["tag "+tag] > 0
}

// keysOf draws chunks for a control call.
func (c *chaos) keysOf(s, n int) ([]store.ChunkKey, []chunkID) {
	ids := c.someChunks(s, n)
	keys := make([]store.ChunkKey, len(ids))
	for i, id := range ids {
		keys[i] = store.ChunkKey{Group: id.group, Hash: id.hash()}
	}
	return keys, ids
}

// opPin pins chunks, for a time or for ever.
func (c *chaos) opPin() {
	s := c.someSpace()
	keys, ids := c.keysOf(s, 4)
	kind, ttl := one(c, []PinKind{PinSoft, PinHard}), time.Duration(0)
	if !c.chance(4) {
		ttl = time.Duration(1+c.rng.IntN(200)) * time.Second
	}
	result, err := c.w.m.Pin(c.spaces[s].name.ID, keys, kind, ttl)
	c.note("   pin %d for %v of %+v: %+v, %v", kind, ttl, ids, result, err)
	switch {
	case errors.Is(err, ErrPinBudget) && kind == PinHard:
		c.saw("pin refused")
		c.compare(nil)
		return
	case err != nil:
		c.t.Fatal(err)
	}
	pinned := map[chunkID]bool{}
	for _, id := range ids {
		if c.whole(id) {
			pinned[id] = true
			c.chunks[id].life.pin, c.chunks[id].life.expires = kind, c.until(ttl)
		}
	}
	if result.Pinned != len(pinned) {
		c.t.Fatalf("%d chunks were pinned, the model has %d", result.Pinned, len(pinned))
	}
	if len(pinned) > 0 {
		c.saw(map[PinKind]string{PinSoft: "pinned soft", PinHard: "pinned hard"}[kind])
	}
	if st := c.w.m.Stats(); st.PinnedBytes > st.CapacityBytes/4 {
		c.t.Fatalf("%d bytes of %d are pinned hard", st.PinnedBytes, st.CapacityBytes)
	}
	c.compare(nil)
}

// opUnpin leaves chunks to the policy.
func (c *chaos) opUnpin() {
	s := c.someSpace()
	keys, ids := c.keysOf(s, 8)
	if c.chance(2) { // all, so that pins do not pile up
		keys, ids = nil, nil
		for _, id := range c.spaces[s].ids {
			keys, ids = append(keys, store.ChunkKey{Group: id.group, Hash: id.hash()}), append(ids, id)
		}
	}
	if _, err := c.w.m.Unpin(c.spaces[s].name.ID, keys); err != nil {
		c.t.Fatal(err)
	}
	for _, id := range ids {
		if ch := c.chunks[id]; c.whole(id) && ch.life.pin != PinNone {
			ch.life.pin, ch.life.expires = PinNone, c.until(c.spaces[s].ttl)
			c.saw("unpinned")
		}
	}
	c.compare(nil)
}

// opRemove removes by one of the scopes.
func (c *chaos) opRemove() {
	s, tag := c.someSpace(), one(c, chaosTags)
	scope := Scope{}
	victims := map[chunkID]bool{}
	switch c.rng.IntN(6) {
	case 0, 1, 2:
		scope.Namespace = &c.spaces[s].name.ID
		ids := c.someChunks(s, 3)
		scope.Chain = c.chance(2)
		for _, id := range ids {
			scope.Hashes = append(scope.Hashes, id.hash())
			for g := range c.spaces[s].spec.Groups {
				c.reach(victims, chunkID{s, uint32(g), id.n}, scope.Chain)
			}
		}
		for id := range victims {
			if scope.Chain && c.chunks[id].hidden {
				// It may have gone, and what is behind it then is out of reach.
				return
			}
		}
		if c.chance(3) {
			scope.SaltTag = &tag
		}
	case 3:
		scope.SaltTag = &tag
	case 4:
		scope.Namespace, scope.SaltTag = &c.spaces[s].name.ID, &tag
	case 5:
		scope.Namespace = &c.spaces[s].name.ID
	}
	done, err := c.w.m.Remove(c.t.Context(), scope)
	c.note("   remove %+v: %+v", scope, done)
	if err != nil {
		c.t.Fatal(err)
	}
	c.wereRemoved(&scope, victims, s, &done)
	c.compare(nil)
}

// reach adds a chunk, and those behind it in its chain as far as they are
// there.
func (c *chaos) reach(out map[chunkID]bool, id chunkID, chain bool) {
	for named := true; ; named = false { // what is named need not be there itself
		if !named && len(c.chunks[id].content) == 0 && c.openPuts(id) == 0 {
			return
		}
		out[id] = true
		if id.n++; !chain || id.n%8 == 0 || id.n >= c.spaces[id.space].chunks {
			return
		}
	}
}

// wereRemoved takes what a scope means out of the model. Only those of the
// victims, if hashes were named.
func (c *chaos) wereRemoved(scope *Scope, victims map[chunkID]bool, s int, done *Removal) {
	removed, hidden := 0, 0
	for id, ch := range c.chunks {
		if len(ch.content) == 0 && c.openPuts(id) == 0 {
			continue
		}
		if scope.Namespace != nil && id.space != s || scope.SaltTag != nil && ch.life.tag != *scope.SaltTag || len(scope.Hashes) > 0 && !victims[id] {
			continue
		}
		if ch.hidden {
			hidden++
		} else if len(ch.content) > 0 {
			removed++
		}
		c.gone[id] = RemovedByCommand
		c.drop(id)
		c.saw("removed")
		if scope.Chain {
			c.saw("removed chain")
		}
	}
	if done.Chunks < removed || done.Chunks > removed+hidden {
		c.t.Fatalf("%d chunks were removed, the model has %d and %d that may be there", done.Chunks, removed, hidden)
	}
}

// opEvict evicts some chunks by command: pinned ones not, or last.
func (c *chaos) opEvict() {
	guarded, n := c.guarded(), 1+c.rng.IntN(6)
	before := map[chunkID]life{}
	for id, ch := range c.chunks {
		if len(ch.content) > 0 {
			before[id] = ch.life
		}
	}
	hidden := c.hidden()
	done, err := c.w.m.Evict(EvictLimit{Chunks: n})
	if err != nil || done.Chunks > n {
		c.t.Fatalf("evict %d: %+v, %v", n, done, err)
	}
	c.byCommand = true
	stale := c.w.m.Stats().Leases != len(c.leases) // a lease that the model has forgotten
	c.compare(guarded)
	gone, soft := 0, false
	for id, l := range before {
		if len(c.chunks[id].content) == 0 {
			gone++
			soft = soft || l.pin == PinSoft
		}
	}
	if gone > done.Chunks || done.Chunks > gone+hidden {
		c.t.Fatalf("%d chunks were evicted, %d are gone", done.Chunks, gone)
	}
	if done.Chunks > 0 {
		c.saw("evicted by command")
	}
	for id := range before {
		ch := c.chunks[id]
		if len(ch.content) == 0 || guarded[id] || ch.hidden || stale || hidden > 0 {
			continue
		}
		if done.Chunks < n || soft && ch.life.pin == PinNone {
			c.t.Fatalf("%d of %d were evicted (softly pinned ones: %v), and %+v was spared", done.Chunks, n, soft, id)
		}
	}
}

// hidden is how many chunks may be there without being told of.
func (c *chaos) hidden() (n int) {
	for _, ch := range c.chunks {
		if ch.hidden {
			n++
		}
	}
	return n
}

// opQuota bounds an owner's bytes, or lifts the bound.
func (c *chaos) opQuota() {
	s, guarded := c.someSpace(), c.guarded()
	o, name := Owner{Namespace: c.spaces[s].name.ID}, spaceOwner(s)
	if tag := one(c, chaosTags); tag != "" {
		o, name = Owner{Tag: tag}, "tag "+tag
	}
	bytes := uint64(0)
	if c.chance(2) {
		bytes = uint64(50+c.rng.IntN(3000)) << 10
	}
	if err := c.w.m.SetQuota(o, bytes); err != nil {
		c.t.Fatal(err)
	}
	c.note("   quota of %s: %d", name, bytes)
	if delete(c.quotas, name); bytes > 0 {
		c.quotas[name] = bytes
	}
	c.tick() // drops what is too much
	c.compare(guarded)
}

// overQuota returns the owners that have more than they may, because some of it was
// in use when the quota was set.
func (c *chaos) overQuota() map[string]bool {
	over := map[string]bool{}
	for _, u := range c.w.m.UsageByTag() {
		if u.Quota > 0 && u.Bytes > u.Quota {
			over["tag "+u.Owner.Tag] = true
		}
	}
	for _, u := range c.w.m.UsageByNamespace() {
		for s, sp := range c.spaces {
			if sp.opened && sp.name.ID == u.Owner.Namespace && u.Quota > 0 && u.Bytes > u.Quota {
				over[spaceOwner(s)] = true
			}
		}
	}
	return over
}

// keepQuotas takes out of the model what owners that were over their quotas have
// lost, which is nothing that was in use.
func (c *chaos) keepQuotas(over map[string]bool, guarded map[chunkID]bool) {
	if len(over) == 0 {
		return
	}
	for s, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		for i, got := range c.inspect(c.w.m, sp) {
			id := sp.ids[i]
			if got != ChunkAbsent || c.state(id) == ChunkAbsent || !over[spaceOwner(s)] && !over["tag "+c.chunks[id].life.tag] {
				continue
			}
			if guarded[id] {
				c.t.Fatalf("%+v was dropped for a quota while in use", id)
			}
			c.evicted(id)
			c.note("   dropped for a quota %+v", id)
		}
	}
}

// checkQuotas: whoever was granted a put has no more than the quota says.
func (c *chaos) checkQuotas(granted []*modelPut) {
	if len(c.quotas) == 0 || len(granted) == 0 {
		return
	}
	tags, spaces := map[string]bool{}, map[store.NamespaceID]bool{}
	for _, p := range granted {
		tags[c.chunks[p.id].life.tag] = true
		spaces[c.spaces[p.id.space].name.ID] = true
	}
	for _, u := range c.w.m.UsageByTag() {
		if tags[u.Owner.Tag] && u.Owner.Tag != "" && u.Quota > 0 && u.Bytes > u.Quota {
			c.t.Fatalf("a put was granted over the quota: %+v", u)
		}
	}
	for _, u := range c.w.m.UsageByNamespace() {
		if spaces[u.Owner.Namespace] && u.Quota > 0 && u.Bytes > u.Quota {
			c.t.Fatalf("a put was granted over the quota: %+v", u)
		}
	}
}

// opDefaultTTL sets how long chunks live of which nobody says so.
func (c *chaos) opDefaultTTL() {
	s, ttl := c.someSpace(), time.Duration(0)
	if c.chance(2) {
		ttl = time.Duration(1+c.rng.IntN(400)) * time.Second
	}
	if err := c.w.m.SetDefaultTTL(c.spaces[s].name.ID, ttl); err != nil {
		c.t.Fatal(err)
	}
	c.spaces[s].ttl = ttl
	c.compare(nil)
}

// opDrain: a store that is drained grants nothing and serves on.
func (c *chaos) opDrain() {
	cl := c.someClient()
	if cl == nil {
		return
	}
	c.w.m.Drain(true)
	c.draining = true
	if puts := c.putStart(cl, c.someSpace(), 6); len(puts) > 0 {
		c.t.Fatal("a drained store has granted a put")
	}
	c.opLookup()
	c.w.m.Drain(false)
	c.draining = false
	c.saw("drained")
	if _, err := c.w.m.Prefetch(c.spaces[0].name.ID, []store.ChunkKey{{Hash: kv.Hash{}}}); !errors.Is(err, ErrNoTier) {
		c.t.Fatalf("prefetch without a slower tier: %v", err)
	}
}
