package embedded

import (
	"math/bits"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// A lookup counts a chunk on the disk as present, within what the disk reads in
// the time that a load may take; the lease that follows begins to read it, and
// the load is told that it is loading until it is there. So the engine asks once,
// with a lookup that waits for nothing, and the disk reads while the engine
// schedules: a synchronous lookup can't wait, and an asynchronous one that is
// told to ask again would find only the first chunk on the disk, as what is
// behind a chunk that is not there yet can't be asked for.

// promotion is a chunk that is being read from the disk into granted slots: a put
// by the store itself. Dropped meanwhile, its tickets are void and its slots are
// held until the tier is done with them.
type promotion struct {
	key     disk.Key
	from    Lower
	lineage lineage
	record  uint32
	tickets []uint64 // by shard
	size    uint64   // of its slots
	// wanted: a request waits for it.
	wanted bool
	// over is closed when it has ended; nil until somebody waits for that.
	over chan struct{}
}

// promoter is the client of promotions; sessions have other numbers than 0.
var promoter = client{}

// comingLocked tells whether a record is being promoted.
func (m *Master) comingLocked(rec uint32) bool {
	p := m.lower.coming[rec]
	if p == nil {
		return false
	}
	put := m.puts[p.tickets[0]]
	return put != nil && put.record == rec && !m.voidLocked(put)
}

// wantLocked begins to bring a chunk up that a request needs and that was not whole
// in memory when the caller looked, and returns its record, also of one that has
// arrived since. False: it is not on the disk, a load of it has just failed, or
// there is no room.
func (m *Master) wantLocked(ns store.NamespaceID, chunk *store.ChunkKey, of lineage) (uint32, bool) {
	if m.lower == nil || len(m.undeclared) > 0 {
		return 0, false
	}
	if rec, known := m.findLocked(ns, chunk.Group, &chunk.Hash); known {
		if m.live[rec].state.Whole() {
			return rec, true
		}
		coming := m.comingLocked(rec) // else somebody is storing it
		if coming {
			m.lower.coming[rec].wanted = true
		}
		return rec, coming
	}
	key := m.diskKey(ns, chunk.Group, &chunk.Hash)
	sources, n := m.lower.sources()
	for _, source := range sources[:n] {
		if found, ok := source.Offers(&key); ok {
			return m.promoteLocked(&promotion{key: key, from: source, lineage: of, wanted: true}, ns, chunk, found)
		}
	}
	return 0, false
}

// promoteLocked begins to bring a chunk up that memory has nothing of. Nothing is
// evicted for one that the disk can't bring.
func (m *Master) promoteLocked(p *promotion, ns store.NamespaceID, chunk *store.ChunkKey, found disk.Found) (uint32, bool) {
	if !p.from.CanFetch() {
		m.lower.stats.PromotionsRefused++
		return 0, false
	}
	into, ok := m.grantPromotionLocked(p, ns, chunk, found)
	if !ok {
		m.lower.stats.PromotionsRefused++
		return 0, false
	}
	m.lower.coming[p.record] = p
	m.faces.set(p.record, faceComing)
	if !p.from.Fetch(p.key, into, func(c *disk.Chunk, err error) { m.arrived(p, c, err) }) {
		m.lower.stats.PromotionsRefused++
		m.abandonLocked(p)
		return 0, false
	}
	return p.record, true
}

// grantPromotionLocked takes slots for all shards of a chunk.
func (m *Master) grantPromotionLocked(p *promotion, ns store.NamespaceID, chunk *store.ChunkKey, found disk.Found) ([][]byte, bool) {
	tag, err := m.tagLocked(found.Tag)
	if err != nil {
		return nil, false
	}
	call := &putCall{
		client: &promoter, near: anyHome, namespace: ns, owner: owner{namespace: uint16(ns), tag: tag}, ttl: p.from.Left(found.Expires),
		full: map[uint32]bool{}, overQuota: map[uint32]bool{},
	}
	g := &m.namespaces[ns].groups[chunk.Group]
	p.size = g.wholeBytes()
	into := make([][]byte, bits.OnesCount64(g.complete))
	granted := m.stats.PutsGranted
	defer func() { m.stats.PutsGranted = granted }() // puts are the workers'
	for shard := range into {
		grant := m.grantPutLocked(call, g, &store.PutItem{Group: chunk.Group, Hash: chunk.Hash, Shard: uint32(shard)})
		if grant.Status != store.PutGranted {
			m.abandonLocked(p)
			return nil, false
		}
		p.tickets = append(p.tickets, grant.Ticket)
		p.record = m.puts[grant.Ticket].record
		into[shard] = m.seg.mem[m.seg.DataOffset+grant.Place.Offset:][:grant.Place.Bytes]
	}
	return into, true
}

// cameLocked takes a promotion out of those under way.
func (m *Master) cameLocked(p *promotion) {
	delete(m.lower.coming, p.record)
	m.faces.clear(p.record, faceComing)
	if p.over != nil {
		close(p.over)
	}
	if m.lower.came != nil {
		close(m.lower.came)
		m.lower.came = nil
	}
}

// abandonLocked gives a promotion's slots back.
func (m *Master) abandonLocked(p *promotion) {
	if m.lower.coming[p.record] == p {
		m.cameLocked(p)
	}
	revoked := m.stats.PutsRevoked
	for _, ticket := range p.tickets {
		m.revokeLocked(ticket, m.puts[ticket])
	}
	m.stats.PutsRevoked = revoked
}

// arrived ends a promotion. The tier calls it.
func (m *Master) arrived(p *promotion, c *disk.Chunk, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.lower.stats.PromotionsFailed++
		if m.isCluster(p.from) {
			m.lower.stats.Cluster.PromotionsFailed++
		}
		if p.wanted {
			// Who waits for it is told that it is gone, and not to try again at once.
			p.from.MissOnce(&p.key)
		}
		m.abandonLocked(p)
		return
	}
	if m.voidLocked(m.puts[p.tickets[0]]) {
		m.abandonLocked(p) // reset, removed
		return
	}
	m.cameLocked(p)
	r := m.seg.peekRecord(p.record)
	of := lineage{c.Parent, c.Depth}
	if of == (lineage{}) {
		of = p.lineage
	}
	r.depth = min(of.depth, maxDepth)
	if of.parent != 0 {
		r.parent = unscoped(&r, of.parent) // puts the scope on again
	}
	m.seg.writeRecord(p.record, &r)
	m.lower.stats.Promoted++
	m.lower.stats.PromotedBytes += uint64(c.ShardBytes) * uint64(len(c.Checksums))
	ended, stored := m.stats.PutsEnded, m.stats.StoredBytes
	for shard, ticket := range p.tickets {
		put := m.puts[ticket]
		delete(m.puts, ticket)
		m.publishShardLocked(put, c.Checksums[shard])
	}
	m.stats.PutsEnded, m.stats.StoredBytes = ended, stored
	m.live[p.record].from = store.TierDisk
	if m.isCluster(p.from) {
		l := &m.live[p.record]
		l.from, l.shared, l.sharedAt = store.TierRemote, m.lower.cluster.Era(), m.renewTicks()
		m.lower.stats.Cluster.Promoted++
	}
	m.demoteAheadLocked(m.namespaces[r.namespace].groups)
}

// loadMissingLocked begins to bring up what a load did not find in memory, the
// first chunk first, and says that it is loading. What has arrived since the load
// looked is given.
func (m *Master) loadMissingLocked(c *client, ns store.NamespaceID, items []store.GetItem, results []store.GetResult) {
	if m.lower == nil {
		return
	}
	groups := m.namespaces[ns].groups
	for i := range items {
		if results[i].Status != store.GetAbsent || int(items[i].Group) >= len(groups) || groups[items[i].Group].complete>>items[i].Shard&1 == 0 {
			continue
		}
		rec, ok := m.wantLocked(ns, &store.ChunkKey{Group: items[i].Group, Hash: items[i].Hash}, lineage{})
		switch {
		case ok && m.live[rec].state.Whole():
			m.stats.GetsAbsent--
			results[i] = m.getLocked(c, ns, &items[i])
		case ok:
			results[i].Status = store.GetLoading
			m.stats.GetsAbsent--
		}
	}
}

// tierLocked tells where a chunk came from for the load at hand.
func (m *Master) tierLocked(rec uint32) store.Tier {
	switch m.live[rec].from {
	case store.TierHost:
	case store.TierDisk:
		m.lower.stats.Hits++
	case store.TierRemote:
		m.lower.stats.Cluster.Hits++
	}
	return m.live[rec].from
}

// unscoped takes the namespace and group out of a key digest of the record's own
// group, or puts them in: the disk keeps digests that hold in every store.
func unscoped(r *record, digest uint64) uint64 {
	return digest ^ scopeDigest(store.NamespaceID(r.namespace), uint32(r.group))
}

// untilDeadline is what is left of a time to live.
func untilDeadline(now time.Duration, deadline uint32) time.Duration {
	return max(time.Duration(deadline)*time.Second-now, time.Second)
}
