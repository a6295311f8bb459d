package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// ChangeKind says what happened to a chunk, or to a namespace.
type ChangeKind uint8

// The kinds of change.
const (
	Stored ChangeKind = iota + 1
	Removed
	// Cleared: a reset; the namespace's chunks are gone, in memory and on the disk.
	// What is dropped of them later is not told again.
	Cleared
	// Opened: the namespace is new to the store.
	Opened
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
// served from. Of a namespace only the namespace is told.
type Change struct {
	Seq       uint64 // from 1, without gaps
	Kind      ChangeKind
	Reason    RemoveReason // of a removal
	Namespace store.NamespaceID
	Group     uint32
	Hash      kv.Hash
	Parent    uint64 // key digest of the predecessor, 0 for none
	Depth     uint32
	// Record is the chunk's number, while it is there.
	Record uint32
}

// feedLength bounds how far back a reader may lag.
const feedLength = 8192

// feed is a ring of the latest changes. Nobody waits for its readers.
type feed struct {
	ring []Change
	next uint64 // sequence number of the newest change
	wake chan<- struct{}
}

func (f *feed) add(c Change) {
	if f.ring == nil {
		f.ring = make([]Change, feedLength)
	}
	f.next++
	c.Seq = f.next
	f.ring[f.next%feedLength] = c
	if f.wake != nil {
		select {
		case f.wake <- struct{}{}:
		default: // the reader knows
		}
	}
}

// tellLocked adds what happened to a chunk. Of one whose namespace was reset all
// is told.
func (m *Master) tellLocked(kind ChangeKind, why RemoveReason, rec uint32, r *record) {
	ns := store.NamespaceID(r.namespace)
	if uint32(r.generation) != m.generationOf(ns) {
		return
	}
	m.feed.add(Change{Kind: kind, Reason: why, Namespace: ns, Group: uint32(r.group), Hash: r.hash, Parent: r.parent, Depth: r.depth, Record: rec})
}

// WakeOnChange has a token put into wake, if there is room, at every change.
func (m *Master) WakeOnChange(wake chan<- struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.feed.wake = wake
}

// Changes appends to dst what happened after the change numbered after, at most
// limit entries. complete is false when older entries than the first one are
// lost: the reader must start over, see Walk.
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

// walkRecords is how many records one Walk looks at: a tenth of a millisecond
// during which nobody can store.
const walkRecords = 2 << 10

// Walk appends to dst the chunks that lookups find among some records, from one on,
// as if they were stored now. next is where the following call goes on, 0 at the
// end. The answer takes account of the changes up to seq, and of no later one: a
// reader that goes by Record, and for the records behind it passes over the changes
// up to seq, knows after the last call what is there.
func (m *Master) Walk(dst []Change, from uint32) (chunks []Change, next uint32, seq uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	end := min(from+walkRecords, m.fresh)
	for rec := from; rec < end; rec++ {
		if !m.live[rec].state.Whole() || m.staleLocked(rec) {
			continue
		}
		r := m.seg.peekRecord(rec)
		dst = append(dst, Change{
			Kind: Stored, Namespace: store.NamespaceID(r.namespace), Group: uint32(r.group), Hash: r.hash, Parent: r.parent, Depth: r.depth, Record: rec,
		})
	}
	if end < m.fresh {
		next = end
	}
	return dst, next, m.feed.next
}
