package embedded

import (
	"maps"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// opPut stores chunks as a worker does that has nothing else to do.
func (c *chaos) opPut() {
	cl := c.someClient()
	if cl == nil {
		return
	}
	puts := c.putStart(cl, c.someSpace(), 16)
	c.putEnd(cl, puts)
}

// opPutStart asks for places and leaves it at that.
func (c *chaos) opPutStart() {
	if cl := c.someClient(); cl != nil && len(cl.puts) < 12 {
		c.putStart(cl, c.someSpace(), 5)
	}
}

// putStart asks for places for up to n chunks and holds the answers against the
// model.
func (c *chaos) putStart(cl *modelClient, s, n int) []*modelPut {
	items, ids := c.putItems(s, n)
	guarded, before := c.guarded(), c.w.m.Stats()
	opts := c.putOptions(s)
	grants, err := c.w.m.PutStartAs(cl.session, c.spaces[s].name, opts, items)
	if err != nil || len(grants) != len(items) {
		c.t.Fatalf("put_start: %d answers, %v", len(grants), err)
	}
	granted := c.granted(cl, ids, items, grants, guarded)
	c.degradePins(granted, before.PinsRefused)
	if len(c.quotas) == 0 && c.spare(&before, c.spaces[s], items) {
		guarded = nil // there was room
	}
	c.compare(guarded)
	c.checkQuotas(granted)
	if len(items) == 1 && grants[0].Status == store.PutNoSpace && c.idle(&before) {
		c.t.Fatalf("no space for %+v in a store in which nothing is in use", ids[0])
	}
	return granted
}

// putItems makes a batch of shards, some of them twice.
func (c *chaos) putItems(s, n int) ([]store.PutItem, []chunkID) {
	var items []store.PutItem
	var ids []chunkID
	for _, id := range c.someChunks(s, n) {
		shards := c.spaces[s].shards(id.group)
		all := c.chance(2)
		for shard := range shards {
			if all || c.chance(shards) {
				parent, depth := id.parent()
				it := store.PutItem{Group: id.group, Hash: id.hash(), Parent: parent, Depth: depth, Shard: uint32(shard)}
				if depth == 0 && c.chance(2) { // the model follows the chain from there only
					c.wrongParent(s, &it)
				}
				items = append(items, it)
				ids = append(ids, id)
			}
		}
	}
	return items, ids
}

// wrongParent makes an item claim itself or another namespace's chunk.
func (c *chaos) wrongParent(s int, it *store.PutItem) {
	if other := c.someSpace(); other != s && c.chance(2) {
		foreign := one(c, c.spaces[other].ids).hash()
		wrongParent(it, c.spaces[s].name.ID, c.spaces[other].name.ID, &foreign)
		return
	}
	wrongParent(it, c.spaces[s].name.ID, 0, nil)
}

// granted notes the places that were granted, and checks each answer.
func (c *chaos) granted(cl *modelClient, ids []chunkID, items []store.PutItem, grants []store.PutGrant, guarded map[chunkID]bool) []*modelPut {
	var out []*modelPut
	for i, g := range grants {
		id, shard := ids[i], items[i].Shard
		_, stored := c.chunks[id].content[shard]
		c.askedAgain(id, stored, g.Status)
		c.note("   client %d: put %+v shard %d: %d %x", cl.id, id, shard, g.Status, g.Ticket)
		switch g.Status {
		case store.PutExists:
			if c.saw("exists"); !stored {
				c.t.Fatalf("%+v shard %d is said to exist", id, shard)
			}
		case store.PutUnderway:
			if c.saw("underway"); stored || !c.underway(id, shard) {
				c.t.Fatalf("%+v shard %d is said to be under way", id, shard)
			}
		case store.PutRefused:
			limited := c.quotaOf(id.space, c.call.tag) || c.quotaOf(id.space, c.chunks[id].life.tag)
			if limited && c.undeclared() == 0 {
				c.saw("over quota")
				c.notStored(id, shard, guarded)
			} else if c.saw("refused"); c.undeclared() == 0 && !c.draining || stored && !c.chunks[id].hidden || c.underway(id, shard) {
				c.t.Fatalf("put of %+v shard %d was refused", id, shard)
			}
		case store.PutNoSpace:
			c.saw("no space")
			c.notStored(id, shard, guarded)
		case store.PutGranted:
			c.saw("granted")
			c.notStored(id, shard, guarded)
			if c.undeclared() > 0 || c.underway(id, shard) {
				c.t.Fatalf("put of %+v shard %d was granted", id, shard)
			}
			p := &modelPut{ticket: g.Ticket, id: id, shard: shard, place: g.Place, generation: c.spaces[id.space].generation}
			c.checkPlace(p)
			if len(c.chunks[id].content) == 0 && c.openPuts(id) == 0 {
				c.chunks[id].life = c.call
			}
			if cl.puts[g.Ticket] != nil {
				c.t.Fatalf("ticket %x was granted twice", g.Ticket)
			}
			cl.puts[g.Ticket] = p
			out = append(out, p)
		default:
			c.t.Fatalf("put of %+v: status %d", id, g.Status)
		}
	}
	return out
}

// notStored: a shard that the model has is not put again, unless its chunk was
// evicted earlier in the same call.
func (c *chaos) notStored(id chunkID, shard uint32, guarded map[chunkID]bool) {
	if _, stored := c.chunks[id].content[shard]; !stored {
		return
	}
	if guarded[id] {
		c.t.Fatalf("%+v shard %d was stored and is in use, and is put again", id, shard)
	}
	c.evicted(id)
}

// underway tells whether an open put brings the shard.
func (c *chaos) underway(id chunkID, shard uint32) bool {
	for _, cl := range c.clients {
		for _, p := range cl.puts {
			if p.id == id && p.shard == shard && !p.void {
				return true
			}
		}
	}
	return false
}

// checkPlace: a granted place is within the data and nobody else's.
func (c *chaos) checkPlace(p *modelPut) {
	layout := c.w.m.Layout()
	end := p.place.Offset + uint64(p.place.Bytes)
	if int(p.place.Bytes) != c.spaces[p.id.space].spec.Groups[p.id.group].ShardBytes || layout.DataOffset+end > layout.FileBytes ||
		p.place.Offset%slotAlign != 0 {
		c.t.Fatalf("%+v was granted the place %+v", p.id, p.place)
	}
	clash := func(o store.Place) bool { return p.place.Offset < o.Offset+uint64(o.Bytes) && o.Offset < end }
	for _, cl := range c.clients {
		for _, o := range cl.puts {
			if clash(o.place) {
				c.t.Fatalf("the place %+v of %+v is granted to client %d already", p.place, p.id, cl.id)
			}
		}
		for _, o := range cl.reads {
			if clash(o.place) {
				c.t.Fatalf("the place %+v of %+v is read by client %d", p.place, p.id, cl.id)
			}
		}
	}
}

// spare tells whether a store had free slabs enough for a batch, so that nothing
// needed to be evicted.
func (c *chaos) spare(before *Stats, sp *space, items []store.PutItem) bool {
	layout := c.w.m.Layout()
	free := int(before.CapacityBytes/layout.SlabBytes) - before.UsedSlabs
	for _, it := range items {
		slot := uint64(layout.slotBytesFor(sp.spec.Groups[it.Group].ShardBytes))
		if uint64(len(items))*slot*uint64(len(sp.spec.Groups)) > layout.SlabBytes/2 {
			return false
		}
	}
	return free >= len(sp.spec.Groups) // one for each size
}

// idle tells whether nothing but the anchors' chunks was in use.
func (c *chaos) idle(before *Stats) bool {
	return before.OpenPuts == 0 && before.OpenReads == anchors && before.Leases == 0 && before.Undeclared == 0 && before.PinnedBytes == 0 &&
		before.CapacityBytes >= 2*c.w.m.Layout().SlabBytes
}

// opPutEnd ends some of the puts that a client has open.
func (c *chaos) opPutEnd() {
	if cl := c.someClient(); cl != nil && len(cl.puts) > 0 {
		c.putEnd(cl, c.somePuts(cl))
	}
}

// somePuts returns some of a client's open puts, in the order of their tickets.
func (c *chaos) somePuts(cl *modelClient) []*modelPut {
	var out []*modelPut
	for _, ticket := range slices.Sorted(maps.Keys(cl.puts)) {
		if c.chance(2) {
			out = append(out, cl.puts[ticket])
		}
	}
	return out
}

// putEnd writes the shards and publishes them.
func (c *chaos) putEnd(cl *modelClient, puts []*modelPut) {
	published, err := c.w.m.PutEnd(cl.session, c.commits(puts))
	if err != nil || len(published) != len(puts) {
		c.t.Fatalf("put_end: %d answers, %v", len(published), err)
	}
	for i, p := range puts {
		c.note("   client %d: end of put %x of %+v shard %d: %v", cl.id, p.ticket, p.id, p.shard, published[i])
		if published[i] == p.void {
			c.t.Fatalf("end of put %x of %+v shard %d: published %v, void %v", p.ticket, p.id, p.shard, published[i], p.void)
		}
		delete(cl.puts, p.ticket)
		if p.void {
			c.saw("void")
			continue
		}
		c.saw("published")
		c.chunks[p.id].content[p.shard] = p.generation
	}
	c.tick() // the time of some may have been up before
	c.compare(nil)
}

// commits writes the shards of puts.
func (c *chaos) commits(puts []*modelPut) []store.PutCommit {
	commits := make([]store.PutCommit, len(puts))
	for i, p := range puts {
		c.fill(c.w.place(p.place), p.id, p.shard, p.generation)
		commits[i] = store.PutCommit{Ticket: p.ticket, Checksum: c.sum(p.place)}
	}
	return commits
}

// opPutRevoke gives places back.
func (c *chaos) opPutRevoke() {
	cl := c.someClient()
	if cl == nil {
		return
	}
	var tickets []uint64
	for _, p := range c.somePuts(cl) {
		tickets = append(tickets, p.ticket)
		delete(cl.puts, p.ticket)
	}
	c.note("   client %d: revoke %x", cl.id, tickets)
	if err := c.w.m.PutRevoke(cl.session, tickets); err != nil {
		c.t.Fatal(err)
	}
	c.compare(nil)
}

// opGet takes references and keeps them.
func (c *chaos) opGet() {
	if cl := c.someClient(); cl != nil && len(cl.reads) < 12 {
		c.get(cl, 5)
	}
}

func (c *chaos) get(cl *modelClient, n int) []uint64 {
	s := c.someSpace()
	ids := c.someChunks(s, n)
	items := make([]store.GetItem, len(ids))
	for i, id := range ids {
		items[i] = store.GetItem{Group: id.group, Hash: id.hash(), Shard: uint32(c.rng.IntN(c.spaces[s].shards(id.group)))}
	}
	holder := c.holder()
	results, err := c.w.m.Get(cl.session, c.spaces[s].name, holder, items)
	if err != nil || len(results) != len(items) {
		c.t.Fatalf("get: %d answers, %v", len(results), err)
	}
	if l := c.leases[holder]; l != nil {
		l.until = c.elapsed + l.ttl
	}
	var refs []uint64
	for i, r := range results {
		c.note("   client %d: get %+v shard %d: %d %x", cl.id, ids[i], items[i].Shard, r.Status, r.Ref)
		hidden := c.chunks[ids[i]].hidden && (r.Status == store.GetReady || !c.guarded()[ids[i]])
		if (r.Status == store.GetReady) != c.whole(ids[i]) && !hidden || r.Status != store.GetReady && r.Status != store.GetAbsent {
			c.t.Fatalf("get of %+v: status %d", ids[i], r.Status)
		}
		if r.Status != store.GetReady {
			continue
		}
		c.checkResult(&r, ids[i], items[i].Shard)
		if cl.reads[r.Ref] != nil {
			c.t.Fatalf("reference %x was given twice", r.Ref)
		}
		cl.reads[r.Ref] = &modelRead{
			ref: r.Ref, id: ids[i], shard: items[i].Shard, place: r.Place, generation: c.chunks[ids[i]].content[items[i].Shard],
		}
		refs = append(refs, r.Ref)
	}
	c.compare(nil)
	return refs
}

// opRelease drops some references.
func (c *chaos) opRelease() {
	cl := c.someClient()
	if cl == nil {
		return
	}
	var refs []uint64
	for _, ref := range slices.Sorted(maps.Keys(cl.reads)) {
		if c.chance(2) {
			refs = append(refs, ref)
		}
	}
	c.release(cl, refs)
}

func (c *chaos) release(cl *modelClient, refs []uint64) {
	c.note("   client %d: release %x", cl.id, refs)
	if err := c.w.m.Release(cl.session, refs); err != nil {
		c.t.Fatal(err)
	}
	for _, ref := range refs {
		if cl.reads[ref].orphan {
			c.saw("doomed read")
		}
		delete(cl.reads, ref)
	}
	c.compare(nil)
}

// opLoad gets, compares and releases.
func (c *chaos) opLoad() {
	if cl := c.someClient(); cl != nil {
		c.release(cl, c.get(cl, 8))
	}
}

// opLookup asks for chunks as a lookup does.
func (c *chaos) opLookup() {
	s := c.someSpace()
	ids := c.someChunks(s, 12)
	v := c.w.m.View(c.spaces[s].name.ID)
	for _, id := range ids {
		want := kv.Absent
		if c.state(id) == ChunkPresent {
			want = kv.Present
		}
		if got := v.Exists(int(id.group), id.hash()); got != want {
			v.Close()
			c.t.Fatalf("lookup of %+v: %d, want %d", id, got, want)
		}
	}
	v.Close()
	for _, id := range ids {
		if c.state(id) == ChunkFailed {
			c.chunks[id].failed = false
			c.saw("missed once")
		}
	}
	c.compare(nil)
}

// opReport reports loads that failed.
func (c *chaos) opReport() {
	cl := c.someClient()
	if cl == nil {
		return
	}
	s := c.someSpace()
	corrupt := c.chance(3)
	var chunks []store.FailedChunk
	for _, id := range c.someChunks(s, 3) {
		if !corrupt && (c.state(id) == ChunkPartial || c.chunks[id].hidden) {
			continue // nobody can have loaded it
		}
		chunks = append(chunks, store.FailedChunk{Group: id.group, Hash: id.hash(), Corrupt: corrupt})
		switch present := len(c.chunks[id].content) > 0; {
		case present && corrupt:
			c.gone[id] = RemovedCorrupt
			c.drop(id)
			c.saw("corrupt")
		case present:
			c.chunks[id].failed = true
		}
	}
	c.note("   client %d: report %+v", cl.id, chunks)
	if err := c.w.m.ReportFailed(cl.session, c.spaces[s].name, chunks); err != nil {
		c.t.Fatal(err)
	}
	c.compare(nil)
}

// holder names a request that may have a lease.
func (c *chaos) holder() store.Lease {
	return store.Lease{Engine: one(c, []string{"e", "f"}), Request: one(c, []string{"1", "2", "3"})}
}

// opLease grants a lease as a lookup does.
func (c *chaos) opLease() {
	s, holder := c.someSpace(), c.holder()
	var keys []store.ChunkKey
	var whole []chunkID
	for _, id := range c.someChunks(s, 10) {
		keys = append(keys, store.ChunkKey{Group: id.group, Hash: id.hash()})
		if c.whole(id) {
			whole = append(whole, id)
		}
	}
	ttl := time.Duration(1+c.rng.IntN(120)) * time.Second
	refused := c.w.m.Stats().LeasesRefused
	c.w.m.Grant(c.spaces[s].name.ID, holder, keys, ttl)
	delete(c.leases, holder)
	n := c.w.m.leasedTo(holder)
	c.note("   lease %v: %d of %d chunks that are whole", holder, n, len(whole))
	st := c.w.m.Stats()
	if n != len(whole) {
		c.saw("lease refused")
		layout, g := c.w.m.Layout(), &c.spaces[s].spec.Groups[whole[n].group]
		if st.LeasedBytes+uint64(layout.slotBytesFor(g.ShardBytes))*uint64(g.Shards) <= st.CapacityBytes/4 || st.LeasesRefused != refused+1 {
			c.t.Fatalf("%d of %d chunks were leased with %d bytes of %d leased; %d refused", n, len(whole), st.LeasedBytes, st.CapacityBytes, st.LeasesRefused-refused)
		}
	}
	if n > 0 {
		c.saw("leased")
		c.leases[holder] = &modelLease{ids: whole[:n], ttl: ttl, until: c.elapsed + ttl}
	}
	c.compare(nil)
}

// leasedTo returns how many chunks a holder's lease has.
func (m *Master) leasedTo(holder store.Lease) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.leases.byHolder[holder]; g != nil {
		return len(g.records)
	}
	return 0
}

// opEndLeases ends a request, or an engine.
func (c *chaos) opEndLeases() {
	if c.chance(4) {
		engine := c.holder().Engine
		c.w.m.ReleaseEngine(engine)
		maps.DeleteFunc(c.leases, func(l store.Lease, _ *modelLease) bool { return l.Engine == engine })
	} else {
		holder := c.holder()
		c.w.m.ReleaseLeases(holder.Engine, []string{holder.Request, "no such"})
		delete(c.leases, holder)
	}
	c.compare(nil)
}

// opClock moves the clock, now and then by a lot or back.
func (c *chaos) opClock() {
	switch c.rng.IntN(6) {
	case 0:
		c.setClock(-time.Duration(c.rng.IntN(600)) * time.Second)
	case 1:
		if c.chance(4) {
			c.setClock(time.Duration(c.rng.IntN(100)) * time.Hour)
		}
	default:
		c.setClock(time.Duration(c.rng.IntN(90)) * time.Second)
	}
}

// setClock: what a lease promised it promises until its time, and no longer; the
// store may hold it for longer. A clock that is set back is counted on from there.
func (c *chaos) setClock(by time.Duration) {
	c.w.now = c.w.now.Add(by)
	c.elapsed += max(by, 0)
	if c.w.m.Stats().SlotsMoved > 0 {
		c.saw("moved")
	}
	c.note("   clock %v", by)
	maps.DeleteFunc(c.leases, func(_ store.Lease, l *modelLease) bool { return c.elapsed > l.until })
	c.tick()
	c.compare(nil)
}
