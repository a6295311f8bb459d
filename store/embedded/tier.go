package embedded

import (
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// lower is what is below the memory, as the master uses it: a disk tier, a cluster
// of other nodes, or both. Chunks go down when memory needs their room (demote.go),
// to the cluster as soon as they are whole (share.go), and come up when somebody
// asks for them (promote.go). No I/O is done under the master's lock: work is
// handed to the tier, which calls back.
//
// A promoted chunk stays below, too, so that it goes down again without being
// written.
type lower struct {
	tier    *disk.Tier // nil for none
	cluster Cluster    // nil for none
	// down is where chunks go whose room memory needs; nil: nowhere.
	down Lower

	moves   map[uint32]*move   // chunks on their way down, by record
	leaving map[uint32][]*move // by slot size: those that may be dropped at once, the next one first
	spare   map[uint32]uint32  // by slot size: slots of the moves that are not lost
	coming  map[uint32]*promotion
	came    chan struct{} // closed when the next promotion ends; nil while nobody waits for it

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
	// disk for it.
	Hits uint64
	// Cluster is what went between memory and the cluster, but for what goes down as
	// to a disk.
	Cluster ClusterStats
}

// SetTier gives the master a disk tier.
//
// REQUIRES: the master serves nobody yet.
func (m *Master) SetTier(t *disk.Tier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	below := m.belowLocked()
	below.tier, below.down = t, t
}

// belowLocked returns what is below, which begins to be.
func (m *Master) belowLocked() *lower {
	if m.lower == nil {
		m.lower = &lower{moves: map[uint32]*move{}, leaving: map[uint32][]*move{}, spare: map[uint32]uint32{}, coming: map[uint32]*promotion{}}
	}
	return m.lower
}

// disk returns the disk tier, nil without one.
func (m *Master) disk() *disk.Tier {
	if m.lower == nil {
		return nil
	}
	return m.lower.tier
}

// down returns where chunks go whose room memory needs, nil for nowhere.
func (m *Master) down() Lower {
	if m.lower == nil {
		return nil
	}
	return m.lower.down
}

// sourcesLocked returns what chunks come up from, the nearest first.
func (l *lower) sources() (of [2]Lower, n int) {
	if l.tier != nil {
		of[n] = l.tier
		n++
	}
	if l.cluster != nil {
		of[n] = l.cluster
		n++
	}
	return of, n
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
	if tier := m.lower.tier; tier != nil {
		switch {
		case chunk.Corrupt:
			tier.Forget(key)
		case !whole:
			tier.MissOnce(&key)
		}
	}
	if cluster := m.lower.cluster; cluster != nil {
		switch {
		case chunk.Corrupt:
			cluster.Forget(&key)
		case !whole:
			cluster.MissOnce(&key)
		}
	}
}

// leaseBelowLocked begins to bring up the chunks of a lease that are below,
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
		rec, ok := m.wantLocked(g.ns, c, g.lineageOf(i))
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

func (m *Master) promiseBytes() uint64 { return uint64(m.seg.Slabs) * m.seg.SlabBytes / promiseShare }

// promises are what one lookup has counted on the disk for.
type promises struct {
	asked  map[disk.Key]bool // true: counted as present
	missed []disk.Key        // the tier's answer was that they are absent, once
	room   uint64
}

// Slower tells whether the lookup has counted on a tier below for a chunk.
func (v *View) Slower() bool { return v.disk.asked != nil || v.far.counted.n > 0 }

// TierOf returns the tier of a chunk that the lookup was told is present.
func (v *View) TierOf(group int, hash kv.Hash) store.Tier {
	switch {
	case len(v.disk.asked) > 0 && v.disk.asked[v.m.diskKey(v.ns, uint32(group), &hash)]:
		return store.TierDisk
	case v.far.counted.n > 0 && v.far.counted.has(keyDigest(v.ns, uint32(group), &hash)):
		return store.TierRemote
	}
	return store.TierHost
}

// below tells whether a chunk that is not whole in memory can be had from the
// disk in time.
//
// REQUIRES: there is a disk tier.
func (v *View) below(group uint32, hash kv.Hash) kv.Existence {
	if v.m.namespaces[v.ns] == nil {
		return kv.Absent
	}
	key := v.m.diskKey(v.ns, group, &hash)
	promised, asked := v.disk.asked[key]
	if !asked {
		found, there := v.m.lower.tier.Has(&key)
		if found.Bytes > 0 && v.disk.asked == nil {
			// Nor more than a load could have in memory at a time.
			v.disk = promises{asked: map[disk.Key]bool{}, room: min(v.m.lower.tier.Room(), v.m.promiseBytes())}
		}
		if found.Bytes == 0 {
			return kv.Absent // nothing to remember
		}
		if !there {
			v.disk.missed = append(v.disk.missed, key)
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
