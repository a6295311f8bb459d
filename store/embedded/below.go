package embedded

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// Lower is a tier below the memory, as chunks go down to it and come up from it.
// Its methods are called under the master's lock: they do not wait, and call back
// later, from goroutines of their own and under no lock of theirs.
//
// Memory that it is given is a piece of the segment's mapping.
type Lower interface {
	// Look tells whether the tier has a chunk, as far as it knows: whoever has a copy
	// may drop it.
	Look(key *disk.Key) (disk.Found, bool)
	// Offers is Look for one who is to bring it up: not one whose load has failed
	// and of which no lookup was told so yet.
	Offers(key *disk.Key) (disk.Found, bool)
	// MissOnce makes a chunk whose load failed a miss for the next lookup.
	MissOnce(key *disk.Key)
	// Touch notes a use of a chunk that is in memory too.
	Touch(key *disk.Key)
	// CanFetch tells whether Fetch would take a chunk now.
	CanFetch() bool
	// Fetch reads a chunk into memory for its shards, by shard. done is called when
	// into is not written to any more; with an error its content is undefined.
	// False: done is not called.
	Fetch(key disk.Key, into [][]byte, done func(*disk.Chunk, error)) bool
	// CanDemote tells whether Demote would take a chunk of that many bytes.
	CanDemote(bytes uint64) bool
	// QueueBytes is how many bytes of chunks may wait to be written.
	QueueBytes() uint64
	// Demote writes a chunk. done is called when source is not read any more; with
	// disk.ErrSource the bytes are not those of the checksums. False: done is not
	// called.
	Demote(chunk disk.Chunk, source [][]byte, done func(error)) bool
	// Deadline is what a time to live that begins now is in a chunk, and Left what is
	// left of one.
	Deadline(ttl time.Duration) uint32
	Left(expires uint32) time.Duration
}

var _ Lower = (*disk.Tier)(nil)

// Cluster is a Lower that other nodes share: what is in it must be asked.
type Cluster interface {
	Lower
	// Open makes a namespace known. soiled: what is there may be of before a reset.
	Open(spec *kv.NamespaceSpec, soiled bool)
	// Clean tells that nothing of before the namespace's last reset is there. Until
	// then it is soiled for the next master, whatever becomes of this one.
	Clean(digest [32]byte) bool
	// Era is the number of the time since the cluster last began to serve, 0 while it
	// does not: what it had before, it may have lost.
	Era() uint8
	// Takes tells whether the cluster is used for a namespace.
	Takes(digest [32]byte) bool
	// Glance begins to answer for one lookup in a namespace. It takes no lock of the
	// master's.
	Glance(digest [32]byte) Glance
	// Ask finds out which chunks of a namespace are there, so that glances know.
	// It may wait, and is called under no lock.
	Ask(ctx context.Context, digest [32]byte, chunks []store.ChunkKey) error
	// Share is Demote of a chunk that stays here, with its pin.
	Share(chunk disk.Chunk, pin store.Pin, source [][]byte, done func(error)) bool
	// Renew asks for a chunk that is used here, so that the cluster keeps it, and calls
	// gone if it is not there. It may be passed over.
	Renew(key disk.Key, gone func(disk.Key))
	// Removes tells whether what an operator removes here is to go there, too: Forget
	// then, and RemoveAll, of all that a namespace has there now.
	Removes() bool
	RemoveAll(digest [32]byte)
	// Forget has a chunk removed that is not to be used any more. False: too many are
	// being removed, and it stays.
	Forget(key *disk.Key) bool
	// Settle makes sure that what RemoveAll and Forget have taken is removed, whatever
	// becomes of this master.
	Settle() error
	// Leave makes nothing of a namespace found any more, and puts of what was handed
	// over before void: it was reset. Reset waits for what that means to the others,
	// under no lock.
	Leave(digest [32]byte)
	Reset(ctx context.Context, digest [32]byte) error
}

// Glance answers for one lookup, from what is known.
type Glance interface {
	// Exists is kv.Present, kv.Absent, or kv.Unknown: then it has to be asked.
	Exists(group uint32, hash *kv.Hash) kv.Existence
	// Ahead is Exists of chunks whose hashes stand one after the other, from one on, of
	// as many as there is room for answers.
	Ahead(group uint32, hashes kv.HashBlob, from int, answers []kv.Existence)
}

// ClusterStats is what went between memory and the cluster.
type ClusterStats struct {
	// Shared chunks were stored there as soon as they were whole, ShareFailed could
	// not be, ShareRefused were not tried, since too many waited or the cluster did
	// not answer.
	Shared, ShareFailed, ShareRefused uint64
	// Promoted chunks were read into memory, PromotionsFailed could not be; both
	// count in TierStats, too. Hits are shards that were loaded after that.
	Promoted, PromotionsFailed, Hits uint64
	// PromiseBytes is how much of it one lookup may be promised at most, 0 without a
	// cluster.
	PromiseBytes uint64
}

// SetCluster gives the master a cluster below. writeBack: chunks are stored there
// when memory needs their room, not as soon as they are whole.
//
// REQUIRES: the master serves nobody yet; with writeBack there is no disk tier.
func (m *Master) SetCluster(c Cluster, writeBack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	below := m.belowLocked()
	below.cluster = c
	if writeBack {
		below.down = c
	}
	for id, ns := range m.namespaces {
		if ns != nil {
			m.openBelowLocked(store.NamespaceID(id))
		}
	}
}

func (m *Master) openBelowLocked(id store.NamespaceID) {
	if m.lower != nil && m.lower.cluster != nil {
		m.lower.cluster.Open(m.namespaces[id].spec, m.seg.resets(int(id)) != m.seg.cleanReset(int(id)))
	}
}

// noteCleanLocked notes in the segment which resets are through in the cluster.
func (m *Master) noteCleanLocked() {
	if m.lower == nil || m.lower.cluster == nil {
		return
	}
	for id, ns := range m.namespaces {
		if ns == nil || m.seg.resets(id) == 0 {
			continue
		}
		clean, through := m.seg.resets(id), m.lower.cluster.Clean(ns.digest)
		if !through {
			clean-- // of what came late, too
		}
		if through != (m.seg.cleanReset(id) == m.seg.resets(id)) {
			m.seg.setCleanReset(id, clean)
		}
	}
}

// isCluster tells whether a tier is the cluster.
func (m *Master) isCluster(l Lower) bool {
	return m.lower.cluster != nil && l == Lower(m.lower.cluster)
}

// resetCluster waits for the cluster's part of a reset.
func (m *Master) resetCluster(ctx context.Context, id store.NamespaceID) error {
	if m.lower == nil || m.lower.cluster == nil {
		return nil
	}
	m.mu.RLock()
	digest := m.namespaces[id].digest
	m.mu.RUnlock()
	return m.lower.cluster.Reset(ctx, digest)
}

// Ask finds out about chunks of which a view said kv.Unknown. Views that begin
// later know. Without a cluster there is nothing to find out.
func (m *Master) Ask(ctx context.Context, id store.NamespaceID, chunks []store.ChunkKey) error {
	if m.lower == nil || m.lower.cluster == nil {
		return nil
	}
	m.mu.RLock()
	ns, err := m.namespaceLocked(id)
	m.mu.RUnlock()
	if err != nil {
		return err
	}
	return m.lower.cluster.Ask(ctx, ns.digest, chunks)
}

// lineage is where a chunk stands in its chain, as tiers say it.
type lineage struct {
	parent uint64
	depth  uint32
}

// lineageOf is that of a chunk of a lease, which has a group's chunks in their
// order, one group behind the other.
func (g *granting) lineageOf(i int) lineage {
	if g.first == nil {
		g.first = map[uint32]int{}
		for at := range g.chunks {
			if _, seen := g.first[g.chunks[at].Group]; !seen {
				g.first[g.chunks[at].Group] = at
			}
		}
	}
	first := g.first[g.chunks[i].Group]
	if i == first {
		return lineage{}
	}
	return lineage{le.Uint64(g.chunks[i-1].Hash[:]), uint32(i - first)}
}
