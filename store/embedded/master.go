package embedded

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
	"github.com/mooncake-sidecar/sidecar/internal/index"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Errors of the master.
var (
	// ErrTooManyNamespaces: the namespace table is full.
	ErrTooManyNamespaces = errors.New("too many namespaces in the store")
	// ErrUnknownClient: the call names a session that is not open.
	ErrUnknownClient = errors.New("no such store session")
)

// Options are the master's settings.
type Options struct {
	// NewPolicy makes the eviction policy for record numbers below records. Nil:
	// LRU.
	NewPolicy func(records int) evict.Policy
	// LeaseShare is the part of the data area that leases may hold together; 0
	// means a quarter.
	LeaseShare float64
	// PinShare is the part of the data area that chunks which are pinned hard may
	// hold together; 0 means a quarter.
	PinShare float64
	// Now is the clock of leases, pins and times to live, see storeClock. Nil:
	// time.Now.
	Now func() time.Time
	// Nodes are the NUMA nodes that a new store's memory is divided between, see
	// Binder, at most MaxNodes of them. None: the store does not care where memory is.
	Nodes []NodeRoom
	// HugePages: the memory is asked for on huge pages, see Collapser.
	HugePages bool
	// Alive tells whether the process with that pid and start time still runs.
	// REQUIRES: not nil.
	Alive func(pid uint32, start uint64) bool
	// Log receives what an operator should know. Nil: slog.Default.
	Log *slog.Logger

	steps stepSizes // the zero value: defaultSteps
}

// Master owns the segment: it allocates, indexes and evicts. It is safe for
// concurrent use; lookups take no lock, what asks about the whole of it shares a
// read lock, all else takes the write lock for the time of one batch.
type Master struct {
	opts Options
	seg  *segment
	mem  Memory

	// table and faces are read without the lock, see View.
	table *index.Table
	faces faces
	// adopted is what is left to be collapsed of an adopted record table. It is
	// PrepareNext's.
	adopted struct{ from, to uint64 }
	// readable is how many records have memory, for those who take no lock.
	readable atomic.Uint32
	// misses is written without the lock.
	misses missCounts
	// generation is that of each namespace's chunks, see Reset.
	generation [maxNamespaces]atomic.Uint32

	mu sync.RWMutex // guards all below, and writing to the above and the segment's tables

	alloc      *slabAllocator
	nodes      []int // NUMA nodes, by the allocator's homes
	policy     evict.Policy
	kinds      classTable
	namespaces []*namespace // by index in the segment; nil for free
	byDigest   map[[sha256.Size]byte]int
	live       []liveRecord // by record number
	lastUse    []uint32     // by record number, in ticks of the clock
	hits       []uint16     // loads, by record number
	free       []uint32     // record numbers that were given back
	fresh      uint32       // record numbers from here on were never used

	clients    map[uint64]*client
	undeclared map[uint64]clientEntry // named by an adopted segment, not heard of yet
	adopting   atomic.Bool            // there are some, for those who take no lock
	reads      map[uint64]openRead
	puts       map[uint64]*openPut
	arriving   map[uint64]struct{} // shards that an open put brings, by arrivalKey
	pins       map[uint32]uint32   // open reads by slot
	doomed     map[uint32]struct{} // slots of dropped chunks that are still read
	followers  followers
	// offeredBytes is what open offers keep from eviction, a chunk for each of its
	// followers.
	offeredBytes uint64
	leases       leaseTable
	counter      uint32 // low half of the next read or ticket number

	tags      []string // salt tags by number
	tagNumber map[string]uint16
	books     accounts
	owned     *ownerOrder // nil before the first quota
	quotaSet  bool        // an owner may be over its quota, because that was set
	pinned    uint64      // bytes of the chunks that are pinned hard
	draining  bool
	lower     *lower // what is below the memory, or nil; the pointer is set before anybody is served

	clock   storeClock
	dropped time.Duration // how long the chunk that was dropped last had not been used
	// dated counts the records with a deadline, and is read without the lock too; sweepAt is where the sweep for
	// those that have passed goes on, nextDue the earliest seen since it began.
	dated   atomic.Int64
	sweepAt uint32
	nextDue uint32

	stale staleSweep

	feed  feed
	stats Stats
	// onReset is told of each namespace that was reset; see OnReset.
	onReset func(store.NamespaceID)
	// recovered is nil in a store that was made new.
	recovered *Recovery
}

// namespace is an open namespace.
type namespace struct {
	spec   *kv.NamespaceSpec
	digest [sha256.Size]byte
	groups []groupInfo
}

// groupInfo is what the master needs of a KV-cache group.
type groupInfo struct {
	shardBytes uint32
	slotBytes  uint32
	complete   uint64 // bitmap of a chunk whose shards are all there
}

// maxCount bounds the readers and the leases of a record.
const maxCount = math.MaxUint16

// liveRecord is the part of a record that dies with the master.
type liveRecord struct {
	readers uint16
	leases  uint16
	puts    uint8
	shards  uint8 // how many are present; which, the slots tell
	state   State
	kept    bool // pinned hard, and unknown to the policy
	away    bool // on its way down to the disk, and unknown to the policy, see move
	// from: where it was read from for the request at hand; TierHost: it was here.
	from store.Tier
	// shared is the cluster's era in which it was handed over to it, or came from
	// there; 0 for none.
	shared uint8
	// sharing counts its puts there that are under way, which pin its slots.
	sharing uint8
	// sharedAt is when it was handed over, or the cluster was asked for it, in
	// renewTicks.
	sharedAt uint16
}

func (l *liveRecord) inUse() bool { return l.readers != 0 || l.leases != 0 || l.puts != 0 }

// Create makes an empty store in mem, which must be zero.
func Create(mem Memory, layout Layout, opts Options) (*Master, error) {
	if uint64(len(mem.Bytes())) != layout.FileBytes {
		return nil, fmt.Errorf("segment mapping has %d bytes, layout wants %d", len(mem.Bytes()), layout.FileBytes)
	}
	// The record table and the slot table follow with what they are for.
	if err := mem.Prepare(0, layout.recordsAt); err != nil {
		return nil, fmt.Errorf("allocate the store's tables (%d bytes): %w", layout.recordsAt, err)
	}
	opts = opts.withDefaults()
	bindSlabs(newSegment(mem, layout), mem, &opts)
	m := newMaster(mem, layout, opts)
	now := m.opts.Now()
	m.clock = resumeClock(now, clockStart, now)
	m.seg.setClock(m.clock.elapsed, now)
	layout.writeHeader(mem.Bytes())
	m.seg.setIncarnation(1)
	return m, nil
}

func (opts Options) withDefaults() Options {
	if opts.NewPolicy == nil {
		opts.NewPolicy = func(records int) evict.Policy { return evict.NewLRU(records) }
	}
	if opts.LeaseShare == 0 {
		opts.LeaseShare = 0.25
	}
	if opts.PinShare == 0 {
		opts.PinShare = 0.25
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.steps.items == 0 {
		opts.steps = defaultSteps()
	}
	return opts
}

// newMaster makes the master of a segment whose slabs have their nodes.
func newMaster(mem Memory, layout Layout, opts Options) *Master {
	m := &Master{
		opts: opts, mem: mem, seg: newSegment(mem, layout),
		table:      index.New(int(layout.Records)),
		faces:      newFaces(int(layout.Records)),
		policy:     opts.NewPolicy(int(layout.Records)),
		kinds:      newClassTable(),
		namespaces: make([]*namespace, maxNamespaces),
		byDigest:   map[[sha256.Size]byte]int{},
		live:       make([]liveRecord, layout.Records),
		lastUse:    make([]uint32, layout.Records),
		hits:       make([]uint16, layout.Records),
		tags:       make([]string, maxTags),
		tagNumber:  map[string]uint16{},
		books:      newAccounts(maxNamespaces, maxTags),
		clients:    map[uint64]*client{},
		undeclared: map[uint64]clientEntry{},
		reads:      map[uint64]openRead{},
		puts:       map[uint64]*openPut{},
		arriving:   map[uint64]struct{}{},
		pins:       map[uint32]uint32{},
		doomed:     map[uint32]struct{}{},
		leases:     newLeaseTable(),
		followers:  followers{},
	}
	if opts.HugePages {
		heads, next := m.table.Memory()
		hugepage.Want(heads)
		hugepage.Want(next)
	}
	nodes, homeOf := homesOf(m.seg)
	m.nodes = nodes
	m.alloc = newSlabAllocator(&layout, len(nodes), homeOf, m.assignSlab)
	return m
}

// assignSlab gives a slab to a size class, or with 0 to none. The memory of its
// slots' entries is allocated first: there are fewer the larger the slots.
func (m *Master) assignSlab(slab, slotBytes uint32) error {
	if slotBytes != 0 {
		entries := m.seg.runBytes(slotBytes) / uint64(slotBytes)
		at := m.seg.slotsAt + uint64(slab)*uint64(m.seg.SlotsPerSlab)*slotEntryBytes
		if err := m.mem.Prepare(at, entries*slotEntryBytes); err != nil {
			m.opts.Log.Warn("a slab stays unused: no memory for the table of its slots", "error", err)
			return err
		}
	}
	m.seg.setSlabClass(slab, slotBytes)
	return nil
}

// freshRecordLocked returns a record number that was never used, if there is
// one. The record table's memory is allocated as it fills.
func (m *Master) freshRecordLocked() (uint32, bool) {
	if m.fresh == m.seg.Records {
		return 0, false
	}
	if ready := m.seg.readyRecords(); m.fresh == ready {
		by := m.recordsBy(ready)
		from, to := m.seg.recordsEnd(), m.seg.recordsAt+uint64(by)*recordBytes
		if err := m.mem.Prepare(from, to-from); err != nil {
			m.opts.Log.Warn("the record table can't grow", "records", ready, "error", err)
			return 0, false
		}
		m.collapse(pageOf(from), to) // what is before it is prepared, too
		m.seg.setReadyRecords(by)
		m.readable.Store(by)
	}
	m.fresh++
	return m.fresh - 1, true
}

// Layout returns the segment's geometry.
func (m *Master) Layout() Layout { return m.seg.Layout }

// PrepareNext allocates one more slab of the data area and makes it usable. It
// returns false when all are, and the tables are where they should be. Call it until
// then, from one goroutine; the store serves meanwhile with what it has.
func (m *Master) PrepareNext() (bool, error) {
	next := m.seg.prepared()
	if next == m.seg.Slabs {
		return m.collapseAdopted(), nil
	}
	if err := m.mem.Prepare(m.seg.SlabOffset(next), m.seg.SlabBytes); err != nil {
		m.noMoreSlabs()
		return false, fmt.Errorf("allocate store memory: %d of %d slabs of %d MiB are ready: %w", next, m.seg.Slabs, m.seg.SlabBytes>>20, err)
	}
	m.collapse(m.seg.SlabOffset(next), m.seg.SlabOffset(next)+m.seg.SlabBytes)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seg.setPrepared(next + 1)
	m.alloc.addSlab(next)
	return next+1 < m.seg.Slabs || m.adopted.from < m.adopted.to, nil
}

// noMoreSlabs notes that the store makes do with the slabs that it has.
func (m *Master) noMoreSlabs() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alloc.coming = 0
}

// OpenNamespace makes a namespace known, or finds it.
func (m *Master) OpenNamespace(spec *kv.NamespaceSpec) (store.Namespace, error) {
	if err := spec.Validate(); err != nil {
		return store.Namespace{}, err
	}
	for i, g := range spec.Groups {
		if uint64(g.ShardBytes) > min(m.seg.MaxShardBytes(), math.MaxUint32-slotAlign) { // a slot's size has 32 bits
			return store.Namespace{}, fmt.Errorf("%w: group %d has shards of %d bytes, a store of %d MiB takes up to %d; raise store_bytes",
				store.ErrShardTooLarge, i, g.ShardBytes, m.seg.FileBytes>>20, m.seg.MaxShardBytes())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	digest := spec.Digest()
	i, known := m.byDigest[digest]
	if !known {
		i = slices.Index(m.namespaces, nil)
		if i < 0 {
			return store.Namespace{}, fmt.Errorf("%w: %d", ErrTooManyNamespaces, maxNamespaces)
		}
		if err := m.seg.writeNamespace(i, spec); err != nil {
			return store.Namespace{}, err
		}
		m.addNamespaceLocked(i, spec)
		m.openBelowLocked(store.NamespaceID(i))
		m.feed.add(Change{Kind: Opened, Namespace: store.NamespaceID(i)})
	}
	return store.Namespace{ID: store.NamespaceID(i), ResetEpoch: m.epochLocked(store.NamespaceID(i))}, nil
}

func (m *Master) addNamespaceLocked(i int, spec *kv.NamespaceSpec) {
	ns := &namespace{spec: spec, digest: spec.Digest()}
	for _, g := range spec.Groups {
		ns.groups = append(ns.groups, groupInfo{
			shardBytes: uint32(g.ShardBytes), slotBytes: m.seg.slotBytesFor(g.ShardBytes),
			complete: ^uint64(0) >> (64 - g.Shards),
		})
	}
	m.namespaces[i] = ns
	m.generation[i].Store(m.seg.resets(i) % generations)
	m.byDigest[ns.digest] = i
	m.books.namespaces[i].quota = m.seg.namespaceQuota(i)
}

// epochLocked combines the segment's identity with the number of resets, both
// of which outlive the master: a name stays good when the segment is adopted,
// and is stale in any other segment, where its number may be another model's.
func (m *Master) epochLocked(id store.NamespaceID) uint64 {
	return uint64(le.Uint32(m.seg.UUID[:]))<<32 | uint64(m.seg.resets(int(id)))
}

func (m *Master) namespaceLocked(id store.NamespaceID) (*namespace, error) {
	if id >= maxNamespaces || m.namespaces[id] == nil {
		return nil, fmt.Errorf("%w: number %d is not open", store.ErrStaleNamespace, id)
	}
	return m.namespaces[id], nil
}

// currentNamespaceLocked also checks the caller's epoch.
func (m *Master) currentNamespaceLocked(n store.Namespace) (*namespace, error) {
	ns, err := m.namespaceLocked(n.ID)
	if err != nil {
		return nil, err
	}
	if m.epochLocked(n.ID) != n.ResetEpoch {
		return nil, fmt.Errorf("%w: it was reset, or opened in another segment", store.ErrStaleNamespace)
	}
	return ns, nil
}

// keyDigest spreads namespace and group over the chunk hash, which is a digest
// already.
func keyDigest(ns store.NamespaceID, group uint32, hash *kv.Hash) uint64 {
	return le.Uint64(hash[:8]) ^ scopeDigest(ns, group)
}

func scopeDigest(ns store.NamespaceID, group uint32) uint64 {
	scope := uint64(ns)<<16 | uint64(group) + 1
	return bits.RotateLeft64(scope*0x9E3779B97F4A7C15, 17)
}

func (m *Master) findLocked(ns store.NamespaceID, group uint32, hash *kv.Hash) (uint32, bool) {
	rec, _, ok := m.find(ns, group, hash)
	return rec, ok
}

func (m *Master) keyOfLocked(id uint32) uint64 {
	r := m.seg.peekRecord(id)
	return keyDigest(store.NamespaceID(r.namespace), uint32(r.group), &r.hash)
}

// moveTo changes a chunk's state.
func (m *Master) moveTo(rec uint32, e Event) {
	l := &m.live[rec]
	l.state = l.state.after(e)
}
