package embedded

import (
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// sharesLocked tells whether chunks of a namespace go to the cluster at once, and it
// serves.
func (m *Master) sharesLocked(ns store.NamespaceID) bool {
	return m.lower != nil && m.lower.cluster != nil && !m.isCluster(m.lower.down) && m.lower.cluster.Era() != 0 && m.lower.cluster.Takes(m.namespaces[ns].digest)
}

// renewTick is the unit of liveRecord.sharedAt. What is used is asked for in the
// cluster after one to two of them.
const renewTick = 30 * time.Second

func (m *Master) renewTicks() uint16 { return uint16(m.clock.elapsed / renewTick) }

// shareAgainLocked hands a chunk that is used to the cluster, if it was not taken
// when it became whole, or the cluster has been away since. The cluster knows
// nothing of uses here, and evicts what nobody asks for: so it is asked now and then
// for what is used, and given again what has gone.
//
// REQUIRES: sharesLocked.
func (m *Master) shareAgainLocked(rec uint32, bytes uint64) {
	switch l := &m.live[rec]; {
	case l.away || l.sharing != 0:
	case l.shared != m.lower.cluster.Era():
		if m.lower.cluster.CanDemote(bytes) {
			m.shareLocked(rec)
		}
	case m.renewTicks()-l.sharedAt > 1:
		l.sharedAt = m.renewTicks()
		r := m.seg.peekRecord(rec)
		m.lower.cluster.Renew(m.diskKeyOf(&r), m.gone)
	}
}

// gone notes that the cluster does not have a chunk any more. The cluster calls it.
func (m *Master) gone(key disk.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, known := m.byDigest[key.Namespace]
	if !known {
		return
	}
	rec, ok := m.findLocked(store.NamespaceID(id), uint32(key.Group), &key.Hash)
	if !ok || !m.live[rec].state.Whole() || m.live[rec].sharing != 0 {
		return
	}
	m.live[rec].shared = 0
	if m.sharesLocked(store.NamespaceID(id)) {
		r := m.seg.peekRecord(rec)
		m.shareAgainLocked(rec, m.groupOf(&r).wholeBytes())
	}
}

// shareLocked hands a chunk that is whole to the cluster, if chunks go there at
// once. Its slots are pinned until it is there: it may be removed meanwhile, and its
// bytes stay until then. Eviction passes it over, which would gain nothing.
func (m *Master) shareLocked(rec uint32) {
	if m.lower == nil || m.lower.cluster == nil || m.isCluster(m.lower.down) {
		return
	}
	r := m.seg.peekRecord(rec)
	g := m.groupOf(&r)
	chunk := m.chunkBelowLocked(&r, g)
	source, slots := m.shardsLocked(&r, g, &chunk)
	done := func(err error) { m.shared(&chunk.Key, slots, err) }
	if !m.lower.cluster.Share(chunk, store.Pin(pinOf(r.flags)), source, done) {
		m.lower.stats.Cluster.ShareRefused++
		return
	}
	l := &m.live[rec]
	l.shared, l.sharedAt = m.lower.cluster.Era(), m.renewTicks()
	l.sharing++
	for _, slot := range slots {
		m.pins[slot]++
	}
}

// shared ends what shareLocked began. The cluster calls it.
func (m *Master) shared(key *disk.Key, slots []uint32, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range slots {
		m.unpinLocked(slot)
	}
	if owner, ok := m.seg.ownerOf(slots[0]); ok { // else it was dropped meanwhile
		m.live[owner].sharing--
	}
	if err == nil {
		m.lower.stats.Cluster.Shared++
		return
	}
	m.lower.stats.Cluster.ShareFailed++
	rec, ok := m.ownerBelowLocked(key, slots) // the slots may be another chunk's by now
	switch {
	case errors.Is(err, disk.ErrSource):
		m.stats.Corrupt++
		if ok {
			m.dropLocked(rec, RemovedCorrupt)
		}
	case ok:
		m.live[rec].shared = 0
	}
}

// ownerBelowLocked returns the record of a chunk that still has those slots.
func (m *Master) ownerBelowLocked(key *disk.Key, slots []uint32) (uint32, bool) {
	id, known := m.byDigest[key.Namespace]
	if !known {
		return 0, false
	}
	rec, ok := m.findLocked(store.NamespaceID(id), uint32(key.Group), &key.Hash)
	if !ok || !m.live[rec].state.Whole() || m.live[rec].away {
		return 0, false
	}
	owner, ok := m.seg.ownerOf(slots[0])
	return rec, ok && owner == rec
}
