package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// ChangeKind says what happened to a chunk.
type ChangeKind uint8

// The kinds of change.
const (
	Stored ChangeKind = iota + 1
	Removed
)

// RemoveReason says why a chunk went.
type RemoveReason uint8

// The reasons, in the order of Stats.Removed.
const (
	RemovedEvicted RemoveReason = iota
	RemovedReset
	RemovedCorrupt
	RemovedExpired   // its time to live was over
	RemovedQuota     // its owner stored something else over its quota
	RemovedByCommand // an operator's
	RemovedForSlab   // with its slab, which another size of slots needed
	RemovedDemoted   // from memory; the disk has it
	removeReasons
)

// Change is an entry of the change feed, which KV events and the conductor are
// served from.
type Change struct {
	Seq       uint64 // from 1, without gaps
	Kind      ChangeKind
	Reason    RemoveReason // of a removal
	Namespace store.NamespaceID
	Group     uint32
	Hash      kv.Hash
	Parent    uint64 // key digest of the predecessor, 0 for none
	Depth     uint32
}

// feedLength bounds how far back a reader may lag.
const feedLength = 8192

// feed is a ring of the latest changes.
type feed struct {
	ring []Change
	next uint64 // sequence number of the newest change
}

func (f *feed) add(c Change) {
	if f.ring == nil {
		f.ring = make([]Change, feedLength)
	}
	f.next++
	c.Seq = f.next
	f.ring[f.next%feedLength] = c
}

// Changes appends to dst what happened after the change numbered after, at most
// limit entries. complete is false when older entries than the first one are
// lost: the reader must start over from a snapshot.
func (m *Master) Changes(dst []Change, after uint64, limit int) (changes []Change, complete bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	first := after + 1
	complete = true
	if m.feed.next >= feedLength && first <= m.feed.next-feedLength {
		first = m.feed.next - feedLength + 1
		complete = false
	}
	for seq := first; seq <= m.feed.next && limit > 0; seq++ {
		dst = append(dst, m.feed.ring[seq%feedLength])
		limit--
	}
	return dst, complete
}
