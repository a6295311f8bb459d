package embedded

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// grantedLease is what a lookup promised one request.
type grantedLease struct {
	records []uint32
	ttl     time.Duration
	until   time.Duration // of the store's clock
}

// leaseTable holds the leases by holder. Nothing relies on a lease for safety.
type leaseTable struct {
	byHolder map[store.Lease]*grantedLease
	// bytes is what the leased chunks take together, those leased twice twice.
	bytes uint64
}

func newLeaseTable() leaseTable { return leaseTable{byHolder: map[store.Lease]*grantedLease{}} }

// Grant keeps chunks from being evicted until the lease is released or ttl has
// passed. A repeated grant replaces the holder's earlier one. Chunks are leased
// from the first on, as long as all leases together stay within their share of
// the memory; the rest goes without.
func (m *Master) Grant(ns store.NamespaceID, holder store.Lease, chunks []store.ChunkKey, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLeaseLocked(holder)
	n, err := m.namespaceLocked(ns)
	if err != nil || len(chunks) == 0 {
		return
	}
	budget := uint64(float64(uint64(m.seg.prepared())*m.seg.SlabBytes) * m.opts.LeaseShare)
	g := &grantedLease{ttl: ttl, until: m.timeLocked() + ttl}
	var below []int // chunks that may be on the disk
	for i := range chunks {
		rec, ok := m.findLocked(ns, chunks[i].Group, &chunks[i].Hash)
		if !ok || !m.live[rec].state.Whole() || m.expiredLocked(rec) || m.live[rec].leases == maxCount {
			below = append(below, i)
			continue
		}
		m.live[rec].fromDisk = false
		group := &n.groups[chunks[i].Group]
		size := uint64(group.slotBytes) * uint64(n.spec.Groups[chunks[i].Group].Shards)
		if m.leases.bytes+size > budget {
			m.stats.LeasesRefused++
			break
		}
		m.leaseLocked(g, rec, size)
	}
	for i := len(g.records) - 1; i >= 0; i-- {
		m.touchLocked(g.records[i])
	}
	m.leaseBelowLocked(ns, g, chunks, below, budget)
	if len(g.records) > 0 {
		m.leases.byHolder[holder] = g
	}
}

// ReleaseLeases gives up the leases of an engine's requests.
func (m *Master) ReleaseLeases(engine string, requests []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range requests {
		m.releaseLeaseLocked(store.Lease{Engine: engine, Request: r})
	}
}

// ReleaseEngine gives up all leases of an engine.
func (m *Master) ReleaseEngine(engine string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for holder := range m.leases.byHolder {
		if holder.Engine == engine {
			m.releaseLeaseLocked(holder)
		}
	}
}

// renewLeaseLocked starts a lease's time anew: one rank of the engine has begun
// to load, and the others may be slower. References protect what is being read;
// the lease goes when the request is released.
func (m *Master) renewLeaseLocked(holder store.Lease) {
	if g := m.leases.byHolder[holder]; g != nil {
		g.until = m.timeLocked() + g.ttl
	}
}

func (m *Master) releaseLeaseLocked(holder store.Lease) {
	g := m.leases.byHolder[holder]
	if g == nil {
		return
	}
	for _, rec := range g.records {
		m.live[rec].leases--
		if m.live[rec].state == Evicting {
			m.letGoLocked(rec) // its bytes went when it was dropped
			continue
		}
		r := m.seg.peekRecord(rec)
		m.leases.bytes -= m.groupOf(&r).wholeBytes()
	}
	delete(m.leases.byHolder, holder)
}

// leaseLocked adds a record to a lease. size is that of the whole chunk.
func (m *Master) leaseLocked(g *grantedLease, rec uint32, size uint64) {
	g.records = append(g.records, rec)
	m.live[rec].leases++
	m.leases.bytes += size
}

// expireLeasesLocked drops the leases that have run out and tells whether there
// were any.
func (m *Master) expireLeasesLocked() bool {
	now := m.timeLocked()
	expired := false
	for holder, g := range m.leases.byHolder {
		if now > g.until {
			m.releaseLeaseLocked(holder)
			expired = true
		}
	}
	return expired
}
