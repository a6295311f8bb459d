package embedded

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// opCrash replaces the master between two operations.
func (c *chaos) opCrash() { c.crash(nil) }

// opTornCrash replaces the master in the midst of one.
func (c *chaos) opTornCrash() {
	inner := one(c, []func(*chaos) *unanswered{
		tearPutStart, tearPutStart, tearPutEnd, tearPutEnd, tearReset, tearReport, tearRevoke, tearPrepare, tearSession, tearNamespace,
		tearPin, tearRemove,
	})
	if cl := c.someClient(); cl != nil {
		c.putStart(cl, c.someSpace(), 8)
	}
	c.crash(inner)
}

// unanswered is a call that a killed master did not answer: what the model needs
// to know of it.
type unanswered struct {
	name string
	// arrived are the shards that it may have published, with their content.
	arrived map[chunkID]map[uint32]uint64
	// reset is the namespace that it may have reset, 0 for none.
	reset int
}

// crash replaces the master as after kill -9. With an operation, some of the
// words that it wrote have arrived, in no order: worse than a process that dies
// between two stores. Whatever that operation did not touch must still be there.
func (c *chaos) crash(inner func(*chaos) *unanswered) {
	layout := c.w.m.Layout()
	touched, call := map[chunkID]bool{}, &unanswered{name: "nothing"}
	var tables []byte
	if inner != nil {
		tables = slices.Clone(c.w.mem[:layout.DataOffset])
		records := c.recordImages()
		if call = inner(c); call == nil {
			return
		}
		for id, image := range c.recordImages() {
			touched[id] = image != records[id] || call.arrived[id] != nil
		}
	}
	c.note("   killed in %s", call.name)
	report := c.adopt(tables)
	clean := inner == nil
	if clean {
		c.saw("adopted")
		c.checkReport(&report)
	}
	c.forget()
	if !clean {
		c.saw("adopted torn")
	}
	c.openAll(call)
	c.settle(call, touched)
	c.w.m.validate(c.t)
	c.openSession(c.anchor)
	c.compare(nil)
}

// tear gives pieces of the tables their earlier value.
func (c *chaos) tear(before []byte) {
	now := c.w.mem[:len(before)]
	keep := c.rng.IntN(9)            // of eight pieces
	piece := one(c, []int{8, 8, 64}) // a word, or a line as a cache writes it back
	for page := headerBytes; page < len(before); page += pageBytes {
		end := min(page+pageBytes, len(before))
		if bytes.Equal(now[page:end], before[page:end]) {
			continue
		}
		for at := page; at < end; at += piece {
			if c.rng.IntN(8) >= keep {
				copy(now[at:at+piece], before[at:at+piece])
			}
		}
	}
}

// adopt makes a new master, while no watcher looks; before, if not nil, is what
// pieces of the tables are given back.
func (c *chaos) adopt(before []byte) Recovery {
	defer c.watchers.pause(c)()
	if before != nil {
		c.tear(before)
	}
	return c.w.crash()
}

// forget: what only the old master knew is gone.
func (c *chaos) forget() {
	clear(c.leases)
	c.feedSeq = 0
	for _, ch := range c.chunks {
		ch.failed = false
	}
	for _, cl := range c.clients {
		for _, p := range cl.puts {
			p.void = true
		}
		cl.open = false
		cl.undeclared = cl.alive
	}
	c.reap()
	for id, ch := range c.chunks {
		if ch.hidden {
			c.drop(id)
		}
	}
	c.tick() // no put holds what has run out any more
	changes, _ := c.w.m.Changes(nil, 0, feedLength)
	c.feedSeq = uint64(len(changes)) // of chunks whose time was up
	st := c.w.m.Stats()
	c.prepared = st.CapacityBytes == st.SizeBytes
}

// checkReport: between two operations nothing is half done.
func (c *chaos) checkReport(report *Recovery) {
	kept, hidden, clients := 0, 0, 0
	for _, ch := range c.chunks {
		switch {
		case ch.hidden:
			hidden++
		case len(ch.content) > 0:
			kept++
		}
	}
	for _, cl := range c.clients {
		if cl.alive {
			clients++
		}
	}
	if report.Chunks < kept || report.Chunks > kept+hidden || report.Dropped != 0 || report.Undeclared < clients {
		c.t.Fatalf("recovered %+v; the model has %d chunks and %d clients", *report, kept, clients)
	}
}

// openAll opens the namespaces again: they have kept their names.
func (c *chaos) openAll(call *unanswered) {
	for s, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		name := c.w.namespace(sp.spec)
		if name == sp.name {
			continue
		}
		if s != call.reset || name.ID != sp.name.ID {
			c.t.Fatalf("namespace %d was %+v and is %+v after a crash", s, sp.name, name)
		}
		sp.stale = append(sp.stale, sp.name)
		sp.name = name
		sp.generation++
	}
}

// settle takes over which chunks have survived, after checking that it may be
// so, and that what is served is right.
func (c *chaos) settle(call *unanswered, touched map[chunkID]bool) {
	probe := c.newClient() // the anchor's client is not heard of yet: no put is granted
	for _, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		for i, got := range c.inspect(c.w.m, sp) {
			id := sp.ids[i]
			was := c.state(id)
			shards := c.shardsOf(probe, id, got)
			if !touched[id] && (got != was || !c.sameShards(id, shards)) {
				c.t.Fatalf("%+v was in state %d before the crash in %s, which did not touch it, and is in state %d with shards %v", id, was, call.name, got, shards)
			}
			c.take(call, id, shards, was)
			c.takeLife(id, touched[id])
		}
	}
	for id, ch := range c.chunks {
		ch.seen = c.whole(id)
	}
	c.checkServed(probe.session)
	c.compare(nil)
	probe.alive = false
	c.w.alive[probe.pid] = false
	c.lose(probe)
}

// shardsOf finds out which shards of a chunk are there.
func (c *chaos) shardsOf(probe *modelClient, id chunkID, state ChunkState) []uint32 {
	if state == ChunkAbsent {
		return nil
	}
	sp := c.spaces[id.space]
	c.renew(id, sp.ttl)
	var items []store.PutItem
	for shard := range sp.shards(id.group) {
		items = append(items, store.PutItem{Group: id.group, Hash: id.hash(), Shard: uint32(shard)})
	}
	grants, err := c.w.m.PutStart(probe.session, sp.name, items)
	if err != nil {
		c.t.Fatal(err)
	}
	var shards []uint32
	for i, g := range grants {
		if g.Status == store.PutExists {
			shards = append(shards, items[i].Shard)
		} else if g.Status != store.PutRefused {
			c.t.Fatalf("put of %+v while a client is not heard of: %d", id, g.Status)
		}
	}
	return shards
}

func (c *chaos) sameShards(id chunkID, shards []uint32) bool {
	return slices.Equal(slices.Sorted(maps.Keys(c.chunks[id].content)), shards)
}

// take gives the model a chunk's shards of after the crash.
func (c *chaos) take(call *unanswered, id chunkID, shards []uint32, was ChunkState) {
	ch := c.chunks[id]
	content := map[uint32]uint64{}
	news := false
	for _, shard := range shards {
		generation, had := ch.content[shard]
		if !had {
			if generation, had = call.arrived[id][shard]; !had {
				c.t.Fatalf("%+v has shard %d after the crash in %s, which nobody stored", id, shard, call.name)
			}
			news = true
		}
		content[shard] = generation
	}
	switch {
	case news:
		c.saw("torn new")
	case len(content) > 0 && call.arrived[id] != nil:
		c.saw("torn old")
	case len(content) == 0 && was != ChunkAbsent:
		c.saw("torn lost")
	}
	if len(content) == 0 {
		c.drop(id)
		return
	}
	ch.content = content
}

// recordImage is a chunk's record and where it is.
type recordImage struct {
	number uint32
	record record
}

// recordImages returns the records of all chunks that have one.
func (c *chaos) recordImages() map[chunkID]recordImage {
	m := c.w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[chunkID]recordImage{}
	for _, sp := range c.spaces {
		if !sp.opened {
			continue
		}
		for _, id := range sp.ids {
			hash := id.hash()
			if rec, ok := m.findLocked(sp.name.ID, id.group, &hash); ok {
				out[id] = recordImage{rec, m.seg.peekRecord(rec)}
			} else {
				out[id] = recordImage{}
			}
		}
	}
	return out
}

func tearPutStart(c *chaos) *unanswered {
	cl, s := c.someClient(), c.someSpace()
	if cl == nil {
		return nil
	}
	items, _ := c.putItems(s, 16)
	if _, err := c.w.m.PutStart(cl.session, c.spaces[s].name, items); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "put_start"}
}

func tearPutEnd(c *chaos) *unanswered {
	cl := c.someClient()
	if cl == nil {
		return nil
	}
	var puts []*modelPut
	for _, ticket := range slices.Sorted(maps.Keys(cl.puts)) {
		puts = append(puts, cl.puts[ticket])
	}
	arrived := map[chunkID]map[uint32]uint64{}
	for _, p := range puts {
		delete(cl.puts, p.ticket)
		if p.void {
			continue
		}
		if arrived[p.id] == nil {
			arrived[p.id] = map[uint32]uint64{}
		}
		arrived[p.id][p.shard] = p.generation
	}
	if _, err := c.w.m.PutEnd(cl.session, c.commits(puts)); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "put_end", arrived: arrived}
}

func tearReset(c *chaos) *unanswered {
	s := c.someSpace()
	if err := c.w.m.Reset(c.spaces[s].name.ID); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "reset", reset: s}
}

func tearReport(c *chaos) *unanswered {
	cl, s := c.someClient(), c.someSpace()
	if cl == nil {
		return nil
	}
	var chunks []store.FailedChunk
	for _, id := range c.someChunks(s, 12) {
		chunks = append(chunks, store.FailedChunk{Group: id.group, Hash: id.hash(), Corrupt: true})
	}
	if err := c.w.m.ReportFailed(cl.session, c.spaces[s].name, chunks); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "report"}
}

func tearRevoke(c *chaos) *unanswered {
	cl := c.someClient()
	if cl == nil {
		return nil
	}
	var tickets []uint64
	for _, p := range c.somePuts(cl) {
		tickets = append(tickets, p.ticket)
		delete(cl.puts, p.ticket)
	}
	refs := slices.Sorted(maps.Keys(cl.reads))
	clear(cl.reads)
	if err := c.w.m.PutRevoke(cl.session, tickets); err != nil {
		c.t.Fatal(err)
	}
	if err := c.w.m.Release(cl.session, refs); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "revoke"}
}

func tearPrepare(c *chaos) *unanswered {
	if _, err := c.w.m.PrepareNext(); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "prepare"}
}

// tearSession opens a session of a client that dies with the master.
func tearSession(c *chaos) *unanswered {
	c.pid++
	c.session++
	c.w.alive[c.pid] = true
	if err := c.w.m.OpenSession(Session{Client: uint64(c.pid), Number: c.session}, c.pid, 7, Declaration{}); err != nil {
		c.t.Fatal(err)
	}
	c.w.alive[c.pid] = false
	return &unanswered{name: "session"}
}

// tearNamespace opens one that nobody has opened before.
func tearNamespace(c *chaos) *unanswered {
	for _, sp := range c.spaces {
		if !sp.opened {
			_ = c.w.namespace(sp.spec)
			return &unanswered{name: "namespace"}
		}
	}
	return nil
}

func tearPin(c *chaos) *unanswered {
	s := c.someSpace()
	var keys []store.ChunkKey
	for _, id := range c.someChunks(s, 6) {
		keys = append(keys, store.ChunkKey{Group: id.group, Hash: id.hash()})
	}
	if _, err := c.w.m.Pin(c.spaces[s].name.ID, keys, PinSoft, time.Hour); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "pin"}
}

func tearRemove(c *chaos) *unanswered {
	tag := one(c, chaosTags)
	if _, err := c.w.m.Remove(c.t.Context(), Scope{SaltTag: &tag}); err != nil {
		c.t.Fatal(err)
	}
	return &unanswered{name: "remove"}
}
