package embedded

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// chaosTags are the tenants of a run.
var chaosTags = []string{"", "red", "blue"}

// life is how long a chunk stays and whose it is.
type life struct {
	tag string
	pin PinKind
	// expires is the second of the store's clock from which on the chunk, or its
	// pin, is no more; 0 for never.
	expires int64
	ttl     time.Duration // of a put: what its chunks get when they are stored again
}

// until returns the second at which a time to live that begins now is over.
func (c *chaos) until(ttl time.Duration) int64 {
	if ttl == 0 {
		return 0
	}
	end := c.elapsed + ttl
	return int64((end + time.Second - time.Nanosecond) / time.Second)
}

// putOptions draws whose the chunks of a put are and how long they are to stay.
func (c *chaos) putOptions(s int) *PutOptions {
	opts := &PutOptions{SaltTag: one(c, chaosTags)}
	if node := c.rng.IntN(8); node < 6 { // some are not there
		opts.Node = &node
	}
	if c.chance(4) {
		opts.TTL = time.Duration(1+c.rng.IntN(300_000)) * time.Millisecond
	}
	switch c.rng.IntN(24) {
	case 0:
		opts.Pin = PinHard
	case 1:
		opts.Pin = PinSoft
	}
	ttl := opts.TTL
	if ttl == 0 && opts.Pin == PinNone {
		ttl = c.spaces[s].ttl
	}
	c.call = life{tag: opts.SaltTag, pin: opts.Pin, expires: c.until(ttl), ttl: ttl}
	c.note("   put options %+v", *opts)
	return opts
}

// askedAgain: a put of a chunk that is there gives it its time anew, also if that
// was up.
func (c *chaos) askedAgain(id chunkID, stored bool, status store.PutStatus) {
	ch := c.chunks[id]
	if ch.hidden {
		if status != store.PutExists || !stored {
			return // it is gone
		}
		ch.hidden = false
		c.saw("revived")
	}
	c.renew(id, c.call.ttl)
}

// renew gives a chunk that lives for a time its time anew.
func (c *chaos) renew(id chunkID, ttl time.Duration) {
	ch := c.chunks[id]
	if len(ch.content) > 0 && !ch.hidden && ch.life.pin == PinNone && ch.life.expires != 0 {
		ch.life.expires = c.until(ttl)
	}
}

// tick is the store's look for what has run out, and the model's.
func (c *chaos) tick() {
	over := c.overQuota()
	// By then a pin whose time is up guards no more.
	defer func() { c.keepQuotas(over, c.guarded()) }()
	for c.w.m.Tick() {
	}
	now := int64(c.elapsed / time.Second)
	for id, ch := range c.chunks {
		if len(ch.content) == 0 || ch.hidden || ch.life.expires == 0 || now < ch.life.expires {
			continue
		}
		switch {
		case ch.life.pin != PinNone:
			ch.life.pin, ch.life.expires = PinNone, c.until(c.spaces[id.space].ttl)
			c.saw("pin ended")
		case c.whole(id):
			ch.hidden = true
			c.gone[id] = RemovedExpired
			c.saw("expired")
		case c.openPuts(id) == 0:
			c.drop(id)
			c.saw("expired")
		}
	}
}

// degradePins: puts that pin hard beyond what may be pinned pin softly.
func (c *chaos) degradePins(granted []*modelPut, refused uint64) {
	for _, p := range granted {
		ch := c.chunks[p.id]
		if ch.life.pin != PinHard {
			continue
		}
		if r, ok := c.recordOf(p.id); ok && r.flags&flagHardPin == 0 {
			if c.w.m.Stats().PinsRefused == refused {
				c.t.Fatalf("%+v is not pinned as its put said", p.id)
			}
			ch.life.pin = PinSoft
		}
	}
}

// recordOf returns a chunk's record.
func (c *chaos) recordOf(id chunkID) (record, bool) {
	m := c.w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	hash := id.hash()
	rec, ok := m.findLocked(c.spaces[id.space].name.ID, id.group, &hash)
	if !ok {
		return record{}, false
	}
	return m.seg.peekRecord(rec), true
}

// recordLife is what a record says of its chunk's life.
func (c *chaos) recordLife(r *record) life {
	c.w.m.mu.Lock()
	defer c.w.m.mu.Unlock()
	l := life{expires: int64(r.expires), tag: c.w.m.tags[r.saltTag]}
	switch r.flags & (flagSoftPin | flagHardPin) {
	case flagSoftPin:
		l.pin = PinSoft
	case flagHardPin:
		l.pin = PinHard
	}
	return l
}

// takeLife compares a chunk's life after a crash, or takes it over if the crash
// came while it was changed.
func (c *chaos) takeLife(id chunkID, touched bool) {
	ch := c.chunks[id]
	if len(ch.content) == 0 {
		return
	}
	if r, ok := c.recordOf(id); ok && touched {
		ch.life = c.recordLife(&r)
	}
}

// sameLife tells whether two lives are one, but for what only a put knows.
func sameLife(a, b life) bool {
	a.ttl, b.ttl = 0, 0
	return a == b
}

// usage is what the model thinks an owner has.
type usage struct {
	chunks        int
	bytes, pinned uint64
}

// checkLives compares tags, pins, deadlines and the books.
func (c *chaos) checkLives() {
	c.t.Helper()
	byTag, bySpace, exact := map[string]usage{}, map[int]usage{}, true
	layout := c.w.m.Layout()
	for id, ch := range c.chunks {
		puts := c.openPuts(id)
		if ch.hidden {
			exact = false // it may be there and may not
			continue
		}
		if len(ch.content)+puts == 0 {
			continue
		}
		r, ok := c.recordOf(id)
		if got := c.recordLife(&r); !ok || !sameLife(got, ch.life) {
			c.t.Fatalf("%+v has the life %+v, want %+v", id, got, ch.life)
		}
		g := &c.spaces[id.space].spec.Groups[id.group]
		slot := uint64(layout.slotBytesFor(g.ShardBytes))
		add := func(u usage) usage {
			u.bytes += uint64(len(ch.content)+puts) * slot
			if len(ch.content) > 0 {
				u.chunks++
			}
			if ch.life.pin == PinHard {
				u.pinned += slot * uint64(g.Shards)
			}
			return u
		}
		byTag[ch.life.tag], bySpace[id.space] = add(byTag[ch.life.tag]), add(bySpace[id.space])
	}
	if !exact {
		return
	}
	for _, u := range c.w.m.UsageByTag() {
		c.checkUsage(&u, byTag[u.Owner.Tag], c.quotas["tag "+u.Owner.Tag])
		delete(byTag, u.Owner.Tag)
	}
	for tag, want := range byTag {
		c.t.Fatalf("nothing is told of what tag %q has: %+v", tag, want)
	}
	for s, sp := range c.spaces {
		for _, u := range c.w.m.UsageByNamespace() {
			if sp.opened && u.Owner.Namespace == sp.name.ID {
				c.checkUsage(&u, bySpace[s], c.quotas[spaceOwner(s)])
			}
		}
	}
}

func (c *chaos) checkUsage(got *Usage, want usage, quota uint64) {
	c.t.Helper()
	if got.Chunks != want.chunks || got.Bytes != want.bytes || got.Pinned != want.pinned || got.Quota != quota {
		c.t.Fatalf("the books have %+v, the model %+v with a quota of %d", *got, want, quota)
	}
}
