package embedded

import (
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// maxClients keeps a run's processes few, so that they meet.
const maxClients = 5

// newClient starts a worker.
func (c *chaos) newClient() *modelClient {
	c.pid++
	cl := &modelClient{id: uint64(c.pid), pid: c.pid, alive: true, puts: map[uint64]*modelPut{}, reads: map[uint64]*modelRead{}}
	c.w.alive[cl.pid] = true
	c.openSession(cl)
	c.clients = append(c.clients, cl)
	return cl
}

// openSession opens a session that declares all that the client holds.
func (c *chaos) openSession(cl *modelClient) {
	c.session++
	cl.session = Session{Client: cl.id, Number: c.session}
	held := Declaration{Reads: slices.Sorted(maps.Keys(cl.reads)), Puts: slices.Sorted(maps.Keys(cl.puts))}
	c.note("   client %d: session %d declares %x", cl.id, c.session, held)
	if err := c.w.m.OpenSession(cl.session, cl.pid, 7, held); err != nil {
		c.t.Fatal(err)
	}
	if cl.undeclared && len(cl.reads)+len(cl.puts) > 0 {
		c.saw("declared")
	}
	cl.open, cl.undeclared = true, false
}

// opSession starts a client, loses its session, or opens it again.
func (c *chaos) opSession() {
	if len(c.clients) < maxClients+1 && c.chance(3) {
		c.newClient()
		c.compare(nil)
		return
	}
	cl := one(c, c.clients)
	for _, waiting := range c.clients {
		if waiting.undeclared && waiting.alive {
			cl = waiting // no put is granted until it is heard of
		}
	}
	if !cl.alive || cl == c.anchor {
		return
	}
	if cl.open && !c.chance(4) {
		c.lose(cl)
		return
	}
	// What was dropped while there was no session is not declared.
	for _, ref := range slices.Sorted(maps.Keys(cl.reads)) {
		if c.chance(4) {
			delete(cl.reads, ref)
		}
	}
	for _, ticket := range slices.Sorted(maps.Keys(cl.puts)) {
		if c.chance(4) {
			delete(cl.puts, ticket)
		}
	}
	c.openSession(cl)
	c.compare(nil)
}

// lose ends a client's session; the client lives and holds what it has.
func (c *chaos) lose(cl *modelClient) {
	c.note("   client %d: session lost", cl.id)
	cl.open = false
	c.w.m.SessionLost(cl.session)
	c.reap()
	c.compare(nil)
}

// opKillClient kills a client, whose session ends with it or has ended before.
func (c *chaos) opKillClient() {
	cl := one(c, c.clients)
	if !cl.alive || cl == c.anchor {
		return
	}
	c.note("   client %d is killed", cl.id)
	cl.alive = false
	c.w.alive[cl.pid] = false
	if cl.open {
		c.lose(cl)
	}
}

// opReap is the master's look for what has run out.
func (c *chaos) opReap() {
	c.w.m.Reap()
	c.reap()
	c.compare(nil)
}

// opScribble: whoever was granted a place may write it until the end of the put
// or of the process, whatever became of the put.
func (c *chaos) opScribble() {
	for _, cl := range c.clients {
		if !cl.alive {
			continue
		}
		for _, p := range cl.puts {
			b := c.w.place(p.place)
			for range 4 {
				b[c.rng.IntN(len(b))] = byte(c.rng.Uint32())
			}
		}
	}
}

// opReset drops a namespace's chunks; what is computed afterwards differs.
func (c *chaos) opReset() {
	s := c.someSpace()
	if err := c.w.m.Reset(c.spaces[s].name.ID); err != nil {
		c.t.Fatal(err)
	}
	c.note("   reset of %d", s)
	c.saw("reset")
	c.wasReset(s)
	c.compare(nil)
}

// wasReset: the namespace has a new name and no chunks.
func (c *chaos) wasReset(s int) {
	sp := c.spaces[s]
	for _, id := range sp.ids {
		c.gone[id] = RemovedReset
		c.drop(id)
	}
	for _, cl := range c.clients {
		for _, p := range cl.puts {
			if p.id.space == s {
				p.void = true
			}
		}
	}
	sp.stale = append(sp.stale, sp.name)
	sp.generation++
	old := sp.name
	if sp.name = c.w.namespace(sp.spec); sp.name.ID != old.ID || slices.Contains(sp.stale, sp.name) {
		c.t.Fatalf("namespace %+v is called %+v after a reset", old, sp.name)
	}
}

// opNamespace opens a namespace, most often one that is known.
func (c *chaos) opNamespace() {
	s := 1 + c.rng.IntN(len(c.spaces)-1)
	sp := c.spaces[s]
	name := c.w.namespace(sp.spec)
	if sp.opened && name != sp.name {
		c.t.Fatalf("namespace %+v is now called %+v", sp.name, name)
	}
	for i, other := range c.spaces {
		if other.opened && i != s && other.name.ID == name.ID {
			c.t.Fatalf("namespaces %d and %d have one number", i, s)
		}
	}
	sp.name, sp.opened = name, true
	c.compare(nil)
}

// opPrepare makes more memory usable.
func (c *chaos) opPrepare() {
	before := c.w.m.Stats().CapacityBytes
	more, err := c.w.m.PrepareNext()
	if err != nil {
		c.t.Fatal(err)
	}
	if after := c.w.m.Stats(); c.prepared != (after.CapacityBytes == before) || more != (after.CapacityBytes < after.SizeBytes) {
		c.t.Fatalf("%d bytes were ready, %d are, of %d; more to come: %v", before, after.CapacityBytes, after.SizeBytes, more)
	}
	if !c.prepared {
		c.saw("slab prepared")
	}
	c.prepared = !more
	c.compare(nil)
}

// opMistake makes a call that must be refused and change nothing.
func (c *chaos) opMistake() {
	cl, s := c.someClient(), c.someSpace()
	if cl == nil {
		return
	}
	sp, hash := c.spaces[s], testHash(1)
	var err, want error
	switch c.rng.IntN(9) {
	case 0, 1, 2:
		if len(sp.stale) == 0 {
			return
		}
		old := one(c, sp.stale)
		want = store.ErrStaleNamespace
		switch c.rng.IntN(3) {
		case 0:
			_, err = c.w.m.PutStart(cl.session, old, []store.PutItem{{Hash: hash}})
		case 1:
			_, err = c.w.m.Get(cl.session, old, store.Lease{}, []store.GetItem{{Hash: hash}})
		case 2:
			err = c.w.m.ReportFailed(cl.session, old, []store.FailedChunk{{Hash: hash, Corrupt: true}})
		}
	case 3:
		stranger := Session{Client: cl.id, Number: cl.session.Number + 1000}
		want = ErrUnknownClient
		switch c.rng.IntN(3) {
		case 0:
			_, err = c.w.m.PutStart(stranger, sp.name, []store.PutItem{{Hash: hash}})
		case 1:
			_, err = c.w.m.PutEnd(stranger, nil)
		case 2:
			err = c.w.m.Release(stranger, slices.Collect(maps.Keys(cl.reads)))
		}
	case 4: // a good item before a bad one
		items, _ := c.putItems(s, 2)
		bad := store.PutItem{Group: uint32(len(sp.spec.Groups)), Hash: hash}
		if c.chance(2) {
			bad = store.PutItem{Group: 0, Hash: hash, Shard: uint32(sp.shards(0))}
		}
		guarded := c.guarded()
		if _, err = c.w.m.PutStart(cl.session, sp.name, append(items, bad)); err == nil {
			c.t.Fatal("a put of what the namespace has not was granted")
		}
		c.compare(guarded)
		return
	case 5: // another's tickets and references
		for _, other := range c.clients {
			if other == cl {
				continue
			}
			var commits []store.PutCommit
			for ticket := range other.puts {
				commits = append(commits, store.PutCommit{Ticket: ticket})
			}
			published, perr := c.w.m.PutEnd(cl.session, commits)
			if perr != nil || slices.Contains(published, true) {
				c.t.Fatalf("client %d has ended puts of %d: %v, %v", cl.id, other.id, published, perr)
			}
			err = errors.Join(c.w.m.PutRevoke(cl.session, slices.Collect(maps.Keys(other.puts))),
				c.w.m.Release(cl.session, slices.Collect(maps.Keys(other.reads))))
		}
	case 6: // numbers that nobody has
		err = errors.Join(c.w.m.PutRevoke(cl.session, []uint64{c.rng.Uint64(), 0}), c.w.m.Release(cl.session, []uint64{c.rng.Uint64(), math.MaxUint64}))
	case 7: // a declaration of what it never had, taken back
		c.declareWrong()
	case 8:
		err = c.w.m.OpenSession(Session{Client: cl.id, Number: c.session + 1}, cl.pid+1, 7, Declaration{})
		want = ErrUnknownClient
	}
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		c.t.Fatalf("got error %v, want %v", err, want)
	}
	c.compare(nil)
}

// declareWrong has a client of its own, which ends at once.
func (c *chaos) declareWrong() {
	c.pid++
	c.session++
	held := Declaration{}
	for range 3 {
		held.Reads = append(held.Reads, c.rng.Uint64(), uint64(c.rng.IntN(2000))<<32|uint64(c.rng.Uint32()))
		held.Puts = append(held.Puts, c.rng.Uint64(), uint64(c.rng.IntN(2000))<<32|uint64(c.rng.Uint32()))
	}
	c.w.alive[c.pid] = true
	s := Session{Client: uint64(c.pid), Number: c.session}
	if err := c.w.m.OpenSession(s, c.pid, 7, held); err != nil {
		c.t.Fatal(err)
	}
	c.w.m.validate(c.t)
	c.w.alive[c.pid] = false
	c.w.m.SessionLost(s)
	c.reap()
}

// finish ends everything and looks whether something is left.
func (c *chaos) finish() {
	c.checkServedBySomebody()
	for _, cl := range c.clients {
		cl.alive = false
		c.w.alive[cl.pid] = false
		if cl.open {
			cl.open = false
			c.w.m.SessionLost(cl.session)
		}
	}
	c.w.m.Reap()
	c.reap()
	c.setClock(10_000 * time.Hour)
	c.w.m.Reap()
	c.w.m.validate(c.t)
	if st := c.w.m.Stats(); st.Clients != 0 || st.Leases != 0 || st.LeasedBytes != 0 || len(c.clients) != 0 {
		c.t.Fatalf("with everybody dead: %+v", st)
	}
	c.stopWatchers()
	for s, sp := range c.spaces {
		if sp.opened {
			if err := c.w.m.Reset(sp.name.ID); err != nil {
				c.t.Fatal(err)
			}
			c.wasReset(s)
		}
	}
	c.compare(nil)
	c.w.m.validate(c.t)
	if st := c.w.m.Stats(); st.UsedBytes != 0 || st.UsedSlabs != 0 {
		c.t.Fatalf("an empty store uses %d bytes in %d slabs", st.UsedBytes, st.UsedSlabs)
	}
}

// checkServedBySomebody has a client of its own load all that is there.
func (c *chaos) checkServedBySomebody() {
	cl := c.newClient()
	c.checkServed(cl.session)
	c.compare(nil)
	cl.alive = false
	c.w.alive[cl.pid] = false
	c.lose(cl)
}

// anchors are chunks that are read all the time, so that they must be there all
// the time.
const anchors = 6

// setAnchors stores and gets them.
func (c *chaos) setAnchors() {
	sp := c.spaces[0]
	c.opPrepare()
	c.opPrepare()
	sp.name, sp.opened = c.w.namespace(sp.spec), true
	c.anchor = c.newClient()
	var items []store.PutItem
	var gets []store.GetItem
	for _, id := range sp.ids {
		items = append(items, store.PutItem{Hash: id.hash()})
		gets = append(gets, store.GetItem{Hash: id.hash()})
	}
	c.call = life{tag: "anchor"}
	grants, err := c.w.m.PutStartAs(c.anchor.session, sp.name, &PutOptions{SaltTag: c.call.tag}, items)
	if err != nil {
		c.t.Fatal(err)
	}
	c.putEnd(c.anchor, c.granted(c.anchor, sp.ids, items, grants, nil))
	results, err := c.w.m.Get(c.anchor.session, sp.name, store.Lease{}, gets)
	if err != nil {
		c.t.Fatal(err)
	}
	for i, r := range results {
		c.checkResult(&r, sp.ids[i], 0)
		c.anchor.reads[r.Ref] = &modelRead{ref: r.Ref, id: sp.ids[i], place: r.Place}
	}
	c.compare(nil)
}

// ghost is the hash of a chunk that is never stored.
func ghost(n int) kv.Hash { return testHash(1_000_000 + n) }
