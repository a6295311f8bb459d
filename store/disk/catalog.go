package disk

import (
	"math/bits"
)

// nothing ends the lists of entries.
const nothing = ^uint32(0)

// place is where a record stands.
type place struct {
	region   uint32
	page     uint32 // within the region; 0 is the region's own header
	pages    uint32
	sequence uint64 // of the region's use
}

// entry is a chunk on the disk. Entries stand in an array of fixed length without
// pointers.
type entry struct {
	key    [2]uint64 // see keyOf
	region uint32
	page   uint32
	pages  uint32
	// chain leads through the bucket, behind through the region's entries.
	chain, behind uint32
	expires       uint32 // Unix seconds, 0 for never
	birth         uint32 // see removals
	parent        uint64 // the first word of the predecessor's key, 0 for none
	tail          uint64 // the last word of the hash, which KV events need
	group         uint16
	space         uint16 // number of its namespace
	tag           uint16 // number of its salt tag
	// removed: it is in no bucket any more, and is freed with its region.
	removed bool
	// missOnce: a load of the chunk has failed; the next lookup is told that it is
	// absent.
	missOnce bool
}

// catalog says where chunks are: a table of chains over the entries. It is pure;
// the tier's lock guards it.
type catalog struct {
	buckets []uint32
	entries []entry
	free    uint32 // head of the free entries, by chain
	fresh   uint32 // entries from here on were never used
	live    int    // entries that are not removed
}

func newCatalog(capacity int) catalog {
	c := catalog{buckets: make([]uint32, 1<<bits.Len(uint(capacity-1))), entries: make([]entry, capacity), free: nothing}
	for i := range c.buckets {
		c.buckets[i] = nothing
	}
	return c
}

// keyOf condenses a key. Hashes and digests are digests already, so a part of
// them will do; the record's header has all of it.
func keyOf(k *Key) [2]uint64 {
	return [2]uint64{
		le.Uint64(k.Hash[:8]) ^ scopeOf(&k.Namespace, k.Group),
		le.Uint64(k.Hash[8:16]) ^ groupScope(k.Group) ^ le.Uint64(k.Namespace[8:16]),
	}
}

// scopeOf is what namespace and group add to the first word of a key.
func scopeOf(namespace *[32]byte, group uint16) uint64 {
	return bits.RotateLeft64(groupScope(group), 17) ^ le.Uint64(namespace[:8])
}

func groupScope(group uint16) uint64 { return (uint64(group) + 1) * 0x9E3779B97F4A7C15 }

// parentOf returns the first word of the key of a chunk's predecessor.
func parentOf(c *Chunk) uint64 {
	if c.Parent == 0 {
		return 0
	}
	return c.Parent ^ scopeOf(&c.Namespace, c.Group)
}

func (c *catalog) bucket(key [2]uint64) *uint32 { return &c.buckets[key[0]&uint64(len(c.buckets)-1)] }

func (c *catalog) find(key [2]uint64) (uint32, bool) {
	for id := *c.bucket(key); id != nothing; id = c.entries[id].chain {
		if c.entries[id].key == key {
			return id, true
		}
	}
	return 0, false
}

// full tells whether insert would find no entry.
func (c *catalog) full() bool { return c.free == nothing && int(c.fresh) == len(c.entries) }

// insert adds an entry to its bucket and returns its number.
//
// REQUIRES: not full; the key is not in the catalog.
func (c *catalog) insert(e *entry) uint32 {
	id := c.free
	if id != nothing {
		c.free = c.entries[id].chain
	} else {
		id = c.fresh
		c.fresh++
	}
	b := c.bucket(e.key)
	e.chain = *b
	c.entries[id] = *e
	*b = id
	c.live++
	return id
}

// remove takes an entry out of its bucket; it stays in its region's list.
//
// REQUIRES: it is in its bucket.
func (c *catalog) remove(id uint32) {
	e := &c.entries[id]
	at := c.bucket(e.key)
	for *at != id {
		at = &c.entries[*at].chain
	}
	*at = e.chain
	e.removed = true
	c.live--
}

// release frees an entry for good.
//
// REQUIRES: it is in no list.
func (c *catalog) release(id uint32) {
	c.entries[id] = entry{chain: c.free, removed: true}
	c.free = id
}

// entryBytes is the size of an entry, for the memory that the tier accounts for.
const entryBytes = 72
