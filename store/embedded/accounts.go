package embedded

import "slices"

// account is what an owner has in memory, and may have.
type account struct {
	chunks  int    // records with at least one shard
	bytes   uint64 // of slots, those of open puts included
	pinned  uint64 // of the bytes, those of chunks that are pinned hard
	quota   uint64 // 0: none
	refused uint64 // puts for the quota's sake
}

// over returns by how much the account would exceed its quota with more bytes.
func (a *account) over(more uint64) uint64 {
	if a.quota == 0 || a.bytes+more <= a.quota {
		return 0
	}
	return a.bytes + more - a.quota
}

// accounts keeps the books of namespaces and salt tags. A chunk is on the
// account of its namespace and on that of its tag.
//
// INVARIANT: a slot is on its owner's account from the grant of its put until
// the put comes to nothing or its chunk is dropped: a void put's counts for nobody.
type accounts struct {
	namespaces []account // by number
	tags       []account // by number, 0 for chunks without a tag
}

func newAccounts(namespaces, tags int) accounts {
	return accounts{namespaces: make([]account, namespaces), tags: make([]account, tags)}
}

// quotas tells whether an owner has one.
func (a *accounts) quotas() bool {
	has := func(x account) bool { return x.quota > 0 }
	return slices.ContainsFunc(a.namespaces, has) || slices.ContainsFunc(a.tags, has)
}

// each calls do for both accounts of an owner.
func (a *accounts) each(o owner, do func(*account)) {
	do(&a.namespaces[o.namespace])
	do(&a.tags[o.tag])
}

// owner is who has a chunk, by numbers.
type owner struct{ namespace, tag uint16 }

func (a *accounts) takeSlot(o owner, slotBytes uint32) {
	a.each(o, func(x *account) { x.bytes += uint64(slotBytes) })
}

func (a *accounts) giveSlot(o owner, slotBytes uint32) {
	a.each(o, func(x *account) { x.bytes -= uint64(slotBytes) })
}

func (a *accounts) countChunk(o owner, by int) {
	a.each(o, func(x *account) { x.chunks += by })
}

func (a *accounts) pin(o owner, bytes uint64)   { a.each(o, func(x *account) { x.pinned += bytes }) }
func (a *accounts) unpin(o owner, bytes uint64) { a.each(o, func(x *account) { x.pinned -= bytes }) }

// refuse counts a put that a quota refused, for the one it was.
func (a *accounts) refuse(o owner, slotBytes uint32) {
	a.each(o, func(x *account) {
		if x.over(uint64(slotBytes)) > 0 {
			x.refused++
		}
	})
}
