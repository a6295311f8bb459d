package embedded

import (
	"maps"

	"github.com/mooncake-sidecar/sidecar/store"
)

// inspect returns the states of all chunks of a namespace, in the order of its
// ids.
func (c *chaos) inspect(m *Master, sp *space) []ChunkState {
	states, err := m.Inspect(sp.name.ID, sp.groups, sp.hashes)
	if err != nil {
		c.t.Fatalf("inspect %+v: %v", sp.name, err)
	}
	return states
}

// compare holds the store against the model. mayEvict, if not nil, says that the
// operation may have evicted chunks, but none of those.
func (c *chaos) compare(mayEvict map[chunkID]bool) {
	c.t.Helper()
	active := 0
	for _, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		for i, got := range c.inspect(c.w.m, sp) {
			id := sp.ids[i]
			want := c.state(id)
			if got != want {
				if got != ChunkAbsent || mayEvict == nil {
					c.t.Fatalf("%+v is in state %d, the model says %d", id, got, want)
				}
				if mayEvict[id] {
					c.t.Fatalf("%+v was evicted while in use", id)
				}
				c.evicted(id)
				c.note("   evicted %+v", id)
			}
			if c.whole(id) {
				active++
			}
		}
	}
	c.compareFeed()
	c.compareWalk()
	clear(c.gone)
	c.byCommand, c.call = false, life{}
	st := c.w.m.Stats()
	reads, puts := 0, 0
	for _, cl := range c.clients {
		if !cl.undeclared {
			reads += len(cl.reads)
			puts += len(cl.puts)
		}
	}
	if st.Chunks != active || st.OpenReads != reads || st.OpenPuts != puts {
		c.t.Fatalf("the store counts %d chunks, %d reads and %d puts; the model %d, %d and %d", st.Chunks, st.OpenReads, st.OpenPuts, active, reads, puts)
	}
	if st.Undeclared != c.undeclared() {
		c.t.Fatalf("the store waits for %d clients, the model for %d", st.Undeclared, c.undeclared())
	}
	if st.LeasedBytes > st.CapacityBytes/4 {
		c.t.Fatalf("%d bytes of %d are leased", st.LeasedBytes, st.CapacityBytes)
	}
	if st.UsedBytes > st.CapacityBytes || st.CapacityBytes > st.SizeBytes {
		c.t.Fatalf("%d bytes are used of %d that are ready of %d", st.UsedBytes, st.CapacityBytes, st.SizeBytes)
	}
	if len(c.leases) > st.Leases {
		c.t.Fatalf("%d leases, the model has %d", st.Leases, len(c.leases))
	}
}

// evicted takes a chunk that nobody had in use out of the model. Puts of it that
// are open were granted after that.
func (c *chaos) evicted(id chunkID) {
	ch := c.chunks[id]
	clear(ch.content)
	for _, cl := range c.clients {
		for _, r := range cl.reads {
			r.orphan = r.orphan || r.id == id
		}
	}
	ch.failed, ch.hidden = false, false
	ch.lost = ch.life
	if c.openPuts(id) > 0 {
		ch.life = c.call
	}
	c.saw("evicted")
}

// openPuts is how many puts bring shards of a chunk.
func (c *chaos) openPuts(id chunkID) (n int) {
	for _, cl := range c.clients {
		for _, p := range cl.puts {
			if p.id == id && !p.void {
				n++
			}
		}
	}
	return n
}

// compareFeed: what became whole was told as stored, what went as removed and
// why, of what was reset that it was, and nothing else was told.
func (c *chaos) compareFeed() {
	c.t.Helper()
	changes, complete := c.w.m.Changes(nil, c.feedSeq, feedLength)
	if !complete {
		c.t.Fatal("the change feed has lost entries")
	}
	told, cleared := map[chunkID][]Change{}, map[int]int{}
	for _, ch := range changes {
		if c.feedSeq++; ch.Seq != c.feedSeq {
			c.t.Fatalf("change %d is numbered %d", c.feedSeq, ch.Seq)
		}
		id := chunkID{space: -1, group: ch.Group}
		for s, sp := range c.spaces {
			if sp.opened && sp.name.ID == ch.Namespace {
				id.space = s
			}
		}
		if id.space >= 0 {
			id.n = c.numbers[ch.Hash]
		}
		switch {
		case ch.Kind == Opened:
			continue
		case ch.Kind == Cleared && id.space >= 0:
			cleared[id.space]++
			continue
		}
		if _, known := c.chunks[id]; !known {
			c.t.Fatalf("a change of nobody's chunk: %+v", ch)
		}
		told[id] = append(told[id], ch)
	}
	reset := map[int]int{}
	for id, why := range c.gone {
		if why == RemovedReset {
			reset[id.space] = 1
		}
	}
	if !maps.Equal(reset, cleared) {
		c.t.Fatalf("spaces reset: %v, told: %v", reset, cleared)
	}
	for id, ch := range c.chunks {
		was, is := ch.seen, c.whole(id)
		ch.seen = is
		switch events := told[id]; {
		case was == is && len(events) == 0:
		case !was && is && len(events) == 1 && events[0].Kind == Stored:
		case !was && ch.hidden && len(events) == 2 && events[0].Kind == Stored && events[1].Reason == RemovedExpired: // its time was up as it came
		case !was && !is && len(events) == 2 && events[0].Kind == Stored && events[1].Reason == RemovedQuota && c.mayGo(id, RemovedQuota): // was in use
		case was && !is && len(events) == 0 && c.gone[id] == RemovedReset && reset[id.space] > 0:
		case was && !is && len(events) == 1 && events[0].Kind == Removed && events[0].Reason != RemovedReset && c.mayGo(id, events[0].Reason):
		default:
			c.t.Fatalf("%+v was whole: %v, is: %v; the feed tells %+v", id, was, is, events)
		}
	}
}

// compareWalk: a walk tells of every chunk that is whole, once.
func (c *chaos) compareWalk() {
	c.t.Helper()
	told := 0
	for from, more := uint32(0), true; more; more = from != 0 {
		var chunks []Change
		chunks, from, _ = c.w.m.Walk(nil, from)
		for i := range chunks {
			told++
			for s, sp := range c.spaces {
				id := chunkID{space: s, group: chunks[i].Group, n: c.numbers[chunks[i].Hash]}
				if sp.opened && sp.name.ID == chunks[i].Namespace && (c.chunks[id] == nil || !c.whole(id)) {
					c.t.Fatalf("the walk tells of %+v, which is not whole", id)
				}
			}
		}
	}
	for id := range c.chunks {
		if c.whole(id) {
			told--
		}
	}
	if told != 0 {
		c.t.Fatalf("the walk tells of %+d chunks more than there are", told)
	}
}

// mayGo tells whether a chunk may have gone for that reason.
func (c *chaos) mayGo(id chunkID, why RemoveReason) bool {
	if announced, ok := c.gone[id]; ok {
		return why == announced
	}
	switch why {
	case RemovedByCommand:
		return c.byCommand
	case RemovedQuota:
		c.saw("evicted for quota")
		return c.quotaOf(id.space, c.chunks[id].lost.tag)
	}
	return !c.byCommand && (why == RemovedEvicted || why == RemovedForSlab)
}

// checkServed gets every chunk that the model has whole, and compares its bytes.
func (c *chaos) checkServed(session Session) {
	c.t.Helper()
	for _, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		var items []store.GetItem
		var ids []chunkID
		for i, id := range sp.ids {
			for shard := range sp.shards(id.group) {
				ids = append(ids, id)
				items = append(items, store.GetItem{Group: id.group, Hash: sp.hashes[i], Shard: uint32(shard)})
			}
		}
		results, err := c.w.m.Get(session, sp.name, store.Lease{}, items)
		if err != nil {
			c.t.Fatal(err)
		}
		var refs []uint64
		for i, r := range results {
			if c.chunks[ids[i]].hidden && r.Status == store.GetReady {
				c.checkResult(&r, ids[i], items[i].Shard)
				refs = append(refs, r.Ref)
				continue
			}
			if (r.Status == store.GetReady) != c.whole(ids[i]) {
				c.t.Fatalf("get of %+v shard %d: status %d", ids[i], items[i].Shard, r.Status)
			}
			if r.Status == store.GetReady {
				c.checkResult(&r, ids[i], items[i].Shard)
				refs = append(refs, r.Ref)
			}
		}
		if err := c.w.m.Release(session, refs); err != nil {
			c.t.Fatal(err)
		}
	}
}

// checkResult compares what a get gives with the content that was put.
func (c *chaos) checkResult(r *store.GetResult, id chunkID, shard uint32) {
	c.t.Helper()
	if int(r.Place.Bytes) != c.spaces[id.space].spec.Groups[id.group].ShardBytes {
		c.t.Fatalf("%+v shard %d has %d bytes", id, shard, r.Place.Bytes)
	}
	generation, stored := c.chunks[id].content[shard]
	if !stored {
		c.t.Fatalf("%+v shard %d was never stored", id, shard)
	}
	if !c.right(r.Place, id, shard, generation) {
		c.t.Fatalf("%+v shard %d: wrong bytes", id, shard)
	}
	if c.sum(r.Place) != r.Checksum {
		c.t.Fatalf("%+v shard %d: wrong checksum", id, shard)
	}
}
