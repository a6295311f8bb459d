package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// lower is the disk tier below the memory, as the master uses it. Chunks go down
// when memory needs their room (demote.go) and come up when somebody asks for
// them (promote.go). No I/O is done under the master's lock: both hand work to
// the tier, which calls back.
//
// A promoted chunk stays on the disk, too, so that it goes down again without
// being written.
type lower struct {
	tier *disk.Tier

	moves   map[uint32]*move   // chunks on their way down, by record
	leaving map[uint32][]*move // by slot size: those that may be dropped at once, the next one first
	spare   map[uint32]uint32  // by slot size: slots of the moves that are not lost
	coming  map[uint32]*promotion

	stats TierStats
}

// The disk keeps whole salt tags.
const _ = uint(disk.MaxTagBytes - maxTagText)

// TierStats is what went between memory and disk.
type TierStats struct {
	// Demoted chunks were written; Clean ones were on the disk already. Returned
	// ones were used before their room was needed.
	Demoted, Clean, Returned uint64
	// Lost are chunks that memory dropped although the disk does not have them: it
	// would not take them in time, or could not.
	Lost uint64
	// Promoted chunks were read into memory; PromotionsFailed could not be, and
	// PromotionsRefused found no room in memory.
	Promoted, PromotionsFailed, PromotionsRefused uint64
	PromotedBytes                                 uint64
	// Hits are shards that were loaded from memory after they had come from the
	// disk for it; promises are chunks that lookups counted as present that were on
	// the disk only.
	Hits uint64
}

// SetTier gives the master a disk tier.
//
// REQUIRES: the master serves nobody yet.
func (m *Master) SetTier(t *disk.Tier) {
	m.mu.Lock()
	m.lower = &lower{
		tier: t, moves: map[uint32]*move{}, leaving: map[uint32][]*move{}, spare: map[uint32]uint32{}, coming: map[uint32]*promotion{},
	}
	m.mu.Unlock()
}

// diskKey names a chunk as the tier does.
func (m *Master) diskKey(ns store.NamespaceID, group uint32, hash *kv.Hash) disk.Key {
	return disk.Key{Namespace: m.namespaces[ns].digest, Group: uint16(group), Hash: *hash}
}

func (m *Master) diskKeyOf(r *record) disk.Key {
	return m.diskKey(store.NamespaceID(r.namespace), uint32(r.group), &r.hash)
}

// unpinLocked ends one read of a slot.
func (m *Master) unpinLocked(slot uint32) {
	m.pins[slot]--
	if m.pins[slot] == 0 {
		delete(m.pins, slot)
		if _, dead := m.doomed[slot]; dead {
			delete(m.doomed, slot)
			m.alloc.release(slot)
		}
	}
}

// memoryOf returns the bytes of a slot that a shard takes.
func (m *Master) memoryOf(slot uint32, g *groupInfo) []byte {
	at := m.seg.DataOffset + m.seg.slotOffset(slot, g.slotBytes)
	return m.seg.mem[at:][:g.shardBytes]
}

// awayLocked returns a chunk's way down, nil if it is on none.
func (m *Master) awayLocked(rec uint32) *move {
	if m.lower == nil {
		return nil
	}
	return m.lower.moves[rec]
}

// reportBelowLocked tells the tier of a chunk whose load failed. whole: it is in
// memory, and the tier's copy was not the one that failed, unless it is corrupt:
// then neither is trusted.
func (m *Master) reportBelowLocked(ns store.NamespaceID, chunk *store.FailedChunk, whole bool) {
	if m.lower == nil {
		return
	}
	key := m.diskKey(ns, chunk.Group, &chunk.Hash)
	switch {
	case chunk.Corrupt:
		m.lower.tier.Forget(key)
	case !whole:
		m.lower.tier.MissOnce(&key)
	}
}

// leaseBelowLocked begins to bring up the chunks of a lease that are on the disk,
// and leases them. False: the leases' share of the memory is used up.
func (m *Master) leaseBelowLocked(g *granting, below []int) bool {
	if m.lower == nil {
		return false
	}
	n := m.namespaces[g.ns]
	for _, i := range below {
		c := &g.chunks[i]
		if int(c.Group) >= len(n.groups) {
			continue
		}
		size := n.groups[c.Group].wholeBytes()
		if m.leases.bytes+size > g.budget {
			m.stats.LeasesRefused++
			return false
		}
		rec, ok := m.wantLocked(g.ns, c)
		if !ok || m.live[rec].leases == maxCount {
			continue
		}
		m.leaseLocked(g.lease, rec, size)
	}
	return true
}

// promiseShare is the part of the memory that a lookup may count on chunks of the
// disk for: what leases may hold, which bring them up.
const promiseShare = 4

// promises are what one lookup has counted on the disk for.
type promises struct {
	asked map[disk.Key]bool // true: counted as present
	room  uint64
}

// Slower tells whether the lookup has counted on the disk for a chunk.
func (v *View) Slower() bool { return v.disk.asked != nil }

// TierOf returns the tier of a chunk that the lookup was told is present.
func (v *View) TierOf(group int, hash kv.Hash) store.Tier {
	if len(v.disk.asked) > 0 && v.disk.asked[v.m.diskKey(v.ns, uint32(group), &hash)] {
		return store.TierDisk
	}
	return store.TierHost
}

// below tells whether a chunk that is not whole in memory can be had from the
// disk in time.
//
// REQUIRES: there is a disk tier.
func (v *View) below(group uint32, hash *kv.Hash) kv.Existence {
	if v.m.namespaces[v.ns] == nil {
		return kv.Absent
	}
	key := v.m.diskKey(v.ns, group, hash)
	promised, asked := v.disk.asked[key]
	if !asked {
		found, there := v.m.lower.tier.Has(&key)
		if found.Bytes > 0 && v.disk.asked == nil {
			// Nor more than a load could have in memory at a time.
			most := uint64(v.m.seg.Slabs) * v.m.seg.SlabBytes / promiseShare
			v.disk = promises{asked: map[disk.Key]bool{}, room: min(v.m.lower.tier.Room(), most)}
		}
		if found.Bytes == 0 {
			return kv.Absent // nothing to remember
		}
		promised = there && found.Bytes <= v.disk.room
		if promised {
			v.disk.room -= found.Bytes
		}
		v.disk.asked[key] = promised
	}
	if promised {
		return kv.Present
	}
	v.misses[MissDisk]++
	return kv.Absent
}
