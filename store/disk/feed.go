package disk

import "github.com/mooncake-sidecar/sidecar/internal/kv"

// Change is an entry of the feed of chunks that come to the disk and go from it.
// A chunk that is void goes when that is noticed, not before; one that has a new
// record goes and comes. What was reset goes without a word: who resets says it.
type Change struct {
	Seq       uint64 // from 1, without gaps but for those where changes are lost
	Stored    bool   // else it went
	Namespace [32]byte
	Group     uint16
	// Hash is the chunk's, without the third of its four words.
	Hash kv.Hash
	// Entry is the chunk's number, while it is there.
	Entry uint32
}

// feedLength bounds how far back a reader may lag.
const feedLength = 8192

// feed is a ring of the latest changes, kept while somebody wants them.
type feed struct {
	ring []Change
	next uint64 // sequence number of the newest change
	wake chan<- struct{}
	// reset is the removal by which a namespace was reset last: of what was born
	// before nothing is told.
	reset map[[32]byte]uint64
}

// lose has every reader start over: there was more to tell than is told.
func (f *feed) lose() {
	if f.ring == nil {
		return
	}
	clear(f.ring)
	f.next += feedLength + 1
	f.poke()
}

func (f *feed) poke() {
	select {
	case f.wake <- struct{}{}:
	default: // the reader knows
	}
}

// maxFeedResets bounds the namespaces whose resets are remembered.
const maxFeedResets = maxNames

// WakeOnChange has changes kept from now on, and a token put into wake, if there
// is room, at every change.
func (t *Tier) WakeOnChange(wake chan<- struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.feed.ring, t.feed.wake = make([]Change, feedLength), wake
}

// Changes appends to dst what happened after the change numbered after, at most
// limit entries. complete is false when older entries than the first one are
// lost, or when the tier began anew: the reader must start over, see Walk.
func (t *Tier) Changes(dst []Change, after uint64, limit int) (changes []Change, complete bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f := &t.feed
	first := after + 1
	complete = true
	if f.next >= feedLength && first <= f.next-feedLength {
		first = f.next - feedLength + 1
		complete = false
	}
	for seq := first; seq <= f.next && limit > 0; seq++ {
		dst = append(dst, f.ring[seq%feedLength])
		limit--
	}
	return dst, complete
}

// walkEntries is how many entries one Walk looks at.
const walkEntries = 1 << 12

// Walk appends to dst the chunks among some entries, from one on, as if they were
// stored now. next is where the following call goes on, 0 at the end. The answer
// takes account of the changes up to seq and of no later one.
func (t *Tier) Walk(dst []Change, from uint32) (chunks []Change, next uint32, seq uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	end := min(from+walkEntries, t.catalog.fresh)
	for id := from; id < end; id++ {
		if e := &t.catalog.entries[id]; !e.removed && !t.wasResetLocked(e) {
			c := t.changeLocked(id)
			c.Stored = true
			dst = append(dst, c)
		}
	}
	if end < t.catalog.fresh {
		next = end
	}
	return dst, next, t.feed.next
}

// insertLocked puts a chunk into the catalog.
func (t *Tier) insertLocked(e *entry) uint32 {
	id := t.catalog.insert(e)
	t.tellLocked(id, true)
	return id
}

// removeLocked takes a chunk out of the catalog.
func (t *Tier) removeLocked(id uint32) {
	t.tellLocked(id, false)
	t.catalog.remove(id)
}

func (t *Tier) tellLocked(id uint32, stored bool) {
	f := &t.feed
	if f.ring == nil || t.wasResetLocked(&t.catalog.entries[id]) {
		return
	}
	f.next++
	c := t.changeLocked(id)
	c.Seq, c.Stored = f.next, stored
	f.ring[f.next%feedLength] = c
	f.poke()
}

func (t *Tier) changeLocked(id uint32) Change {
	e := &t.catalog.entries[id]
	c := Change{Namespace: t.spaces.value(e.space), Group: e.group, Entry: id}
	k := keyOf(&Key{Namespace: c.Namespace, Group: c.Group}) // what is not of the hash
	le.PutUint64(c.Hash[:8], e.key[0]^k[0])
	le.PutUint64(c.Hash[8:16], e.key[1]^k[1])
	le.PutUint64(c.Hash[24:], e.tail)
	return c
}

func (t *Tier) wasResetLocked(e *entry) bool {
	return len(t.feed.reset) > 0 && uint64(e.birth) < t.feed.reset[t.spaces.value(e.space)]
}

// noteResetLocked remembers a reset that was noted just now.
func (t *Tier) noteResetLocked(namespace *[32]byte) {
	if len(t.feed.reset) >= maxFeedResets || t.feed.reset == nil {
		t.feed.reset = map[[32]byte]uint64{} // what went before is told, at worst
	}
	t.feed.reset[*namespace] = t.removed.since[namespaceMark(namespace)]
}
