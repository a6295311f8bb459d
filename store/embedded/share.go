package embedded

import (
	"errors"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// sharesLocked tells whether chunks of a namespace go to the cluster at once, and it
// serves.
func (m *Master) sharesLocked(ns store.NamespaceID) bool {
	return m.lower != nil && m.lower.cluster != nil && !m.isCluster(m.lower.down) && m.lower.cluster.Era() != 0 && m.lower.cluster.Takes(m.namespaces[ns].digest)
}

// shareAgainLocked hands a chunk that is used to the cluster, if it was not taken
// when it became whole, or the cluster has been away since.
//
// REQUIRES: sharesLocked.
func (m *Master) shareAgainLocked(rec uint32, bytes uint64) {
	if m.live[rec].shared != m.lower.cluster.Era() && !m.live[rec].away && m.lower.cluster.CanDemote(bytes) {
		m.shareLocked(rec)
	}
}

// shareLocked hands a chunk that is whole to the cluster, if chunks go there at
// once. Its slots are pinned until it is there: it may be
// dropped meanwhile, and its bytes stay until then.
func (m *Master) shareLocked(rec uint32) {
	if m.lower == nil || m.lower.cluster == nil || m.isCluster(m.lower.down) {
		return
	}
	r := m.seg.peekRecord(rec)
	g := m.groupOf(&r)
	chunk := m.chunkBelowLocked(&r, g)
	source, slots := m.shardsLocked(&r, g, &chunk)
	done := func(err error) { m.shared(&chunk.Key, slots, err) }
	if !m.lower.cluster.Demote(chunk, source, done) {
		m.lower.stats.Cluster.ShareRefused++
		return
	}
	m.live[rec].shared = m.lower.cluster.Era()
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
