package embedded

import (
	"slices"
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

const (
	// grantStep is how many chunks are leased at a time, and bringStep how many of
	// them are asked of the disk; in between others have the store.
	grantStep = 512
	bringStep = 32
	// expireStep is how many chunks' leases are dropped at a time because they have
	// run out, and those of one lease.
	expireStep = 4096
)

// Grant keeps chunks from being evicted until the lease is released or ttl has
// passed. A repeated grant replaces the holder's earlier one. Chunks are leased
// from the first on, as long as all leases together stay within their share of
// the memory; the rest goes without.
func (m *Master) Grant(ns store.NamespaceID, holder store.Lease, chunks []store.ChunkKey, ttl time.Duration) {
	g := &granting{ns: ns, holder: holder, chunks: chunks, lease: &grantedLease{ttl: ttl}}
	if !m.beginGrant(g) {
		return
	}
	for from, more := 0, true; more && from < len(chunks); from += grantStep {
		more = m.grantSome(g, from, min(from+grantStep, len(chunks)))
		m.betweenSteps()
	}
	m.touchGranted(g)
	for step := range slices.Chunk(g.below, bringStep) {
		if !m.bringSome(g, step) {
			break
		}
	}
	m.endGrant(g)
	m.offer(g)
}

// granting is a lease that is being granted.
//
// INVARIANT: the lease is in the table, or others have ended it meanwhile.
type granting struct {
	ns     store.NamespaceID
	holder store.Lease
	chunks []store.ChunkKey
	lease  *grantedLease
	budget uint64
	below  []int // chunks that may be below
	// first is where each group's chunks begin; nil until it is asked for.
	first map[uint32]int
}

func (m *Master) beginGrant(g *granting) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLeaseLocked(g.holder)
	if _, err := m.namespaceLocked(g.ns); err != nil || len(g.chunks) == 0 {
		return false
	}
	g.budget = uint64(float64(uint64(m.seg.prepared())*m.seg.SlabBytes) * m.opts.LeaseShare)
	g.lease.until = m.timeLocked() + g.lease.ttl
	m.leases.byHolder[g.holder] = g.lease
	return true
}

// goesOnLocked tells whether a lease is still to be had.
func (m *Master) goesOnLocked(g *granting) bool { return m.leases.byHolder[g.holder] == g.lease }

// grantSome leases the chunks from one to before another. False: there will be no
// more.
func (m *Master) grantSome(g *granting, from, to int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := m.namespaces[g.ns].groups
	if !m.goesOnLocked(g) {
		return false
	}
	again := m.sharesLocked(g.ns)
	for i := from; i < to; i++ {
		c := &g.chunks[i]
		rec, ok := m.findLocked(g.ns, c.Group, &c.Hash)
		if !ok || !m.live[rec].state.Whole() || m.expiredLocked(rec) || m.live[rec].leases == maxCount {
			g.below = append(g.below, i)
			continue
		}
		m.live[rec].from = store.TierHost
		size := groups[c.Group].wholeBytes()
		if m.leases.bytes+size > g.budget {
			m.stats.LeasesRefused++
			return false
		}
		m.leaseLocked(g.lease, rec, size)
		if again {
			m.shareAgainLocked(rec, size)
		}
	}
	return true
}

// touchGranted notes the use of what was leased, the leaf first.
func (m *Master) touchGranted(g *granting) {
	for to := len(g.lease.records); to > 0; to -= grantStep {
		m.touchSome(g, max(to-grantStep, 0), to)
	}
}

func (m *Master) touchSome(g *granting, from, to int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.goesOnLocked(g) {
		return
	}
	for i := to - 1; i >= from; i-- {
		if rec := g.lease.records[i]; m.live[rec].state.Resident() { // it may have gone meanwhile
			m.touchLocked(rec)
		}
	}
}

func (m *Master) bringSome(g *granting, below []int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.goesOnLocked(g) && m.leaseBelowLocked(g, below)
}

func (m *Master) endGrant(g *granting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.goesOnLocked(g) && len(g.lease.records) == 0 {
		delete(m.leases.byHolder, g.holder)
	}
}

// ReleaseLeases gives up the leases of an engine's requests, one after the other.
func (m *Master) ReleaseLeases(engine string, requests []string) {
	for _, r := range requests {
		m.releaseLease(store.Lease{Engine: engine, Request: r})
	}
}

func (m *Master) releaseLease(holder store.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLeaseLocked(holder)
}

// ReleaseEngine gives up all leases that an engine has, one after the other.
func (m *Master) ReleaseEngine(engine string) {
	for holder, g := range m.leasesOf(engine) {
		m.releaseIf(holder, g)
	}
}

func (m *Master) leasesOf(engine string) map[store.Lease]*grantedLease {
	m.mu.RLock()
	defer m.mu.RUnlock()
	of := map[store.Lease]*grantedLease{}
	for holder, g := range m.leases.byHolder {
		if holder.Engine == engine {
			of[holder] = g
		}
	}
	return of
}

// releaseIf releases a holder's lease if that is still the one.
func (m *Master) releaseIf(holder store.Lease, g *grantedLease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases.byHolder[holder] == g {
		m.releaseLeaseLocked(holder)
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

// expireLeasesLocked drops leases that have run out and tells whether there were
// any, and whether there may be more.
func (m *Master) expireLeasesLocked() (expired, more bool) {
	now, chunks := m.timeLocked(), 0
	for holder, g := range m.leases.byHolder {
		if now <= g.until {
			continue
		}
		if expired && chunks > expireStep {
			return true, true
		}
		chunks += len(g.records)
		m.releaseLeaseLocked(holder)
		expired = true
	}
	return expired, false
}
