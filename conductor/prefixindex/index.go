package prefixindex

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Options of an index.
type Options struct {
	// MaxBytes bounds the memory of all that the index knows; 0 is no bound. What does
	// not fit is dropped, and answers say that it was. Sources, their groups and
	// models count, and are taken where it is reached, too.
	MaxBytes int64
	// Seed of the digests. Keep it secret, and the same for as long as what is kept on
	// disk or sent to others is to be understood.
	Seed uint64
}

// Index knows who holds which blocks. It is safe for concurrent use; a Source is its
// owner's.
type Index struct {
	opts   Options
	budget budget

	walks sync.Pool // of *walk: their memory

	mu     sync.RWMutex // guards spaces
	spaces map[spaceKey]*space
}

// New makes an index.
func New(opts Options) *Index {
	x := &Index{opts: opts, spaces: map[spaceKey]*space{}}
	x.budget.bytes = &atomic.Int64{}
	x.budget.max = opts.MaxBytes
	return x
}

// budget counts the bytes of all spaces, and in own those of one.
type budget struct {
	bytes *atomic.Int64
	max   int64
	own   int64
}

// take asks for memory, which is given back with the whole space only.
func (b *budget) take(n int64) bool {
	if used := b.bytes.Add(n); b.max > 0 && used > b.max {
		b.bytes.Add(-n)
		return false
	}
	b.own += n
	return true
}

// spend takes memory that is needed, whether it is there or not.
func (b *budget) spend(n int64) {
	b.bytes.Add(n)
	b.own += n
}

// giveBack gives everything back.
func (b *budget) giveBack() {
	b.bytes.Add(-b.own)
	b.own = 0
}

// What a space, a rank and a group of one take, about: their lists grow by doubling.
const (
	spaceBytes = 2*tableBytes + aheadBytes
	slotBytes  = 512
	laneBytes  = 128
)

// spaceKey is what all that a space knows has in common. Engines with equal keys call
// equal blocks by the same hash, if they hash in the same way.
type spaceKey struct {
	tenant, model string
	// lora is the adapter of engines that have one and do not name it: it is not in their
	// hashes either.
	lora string
	// salt is that of the engines, not of their requests: one that says that their
	// blocks are of another kind, such as of another quantisation.
	salt string
}

// DefaultTenant is the tenant of whoever names none.
const DefaultTenant = "default"

func keyOf(tenant, model, lora, salt string) spaceKey {
	if tenant == "" {
		tenant = DefaultTenant
	}
	return spaceKey{tenant, model, lora, salt}
}

// space is a tenant's blocks of one model.
type space struct {
	key    spaceKey
	budget budget

	turns turns

	// mu guards all below. It is held for some hundred blocks at a time.
	mu      sync.RWMutex
	records records
	tables  [2]table
	// ahead is for what is stored and removed, by the table: not for queries, which share
	// the lock.
	ahead [2]ahead
	// mix keeps who chooses hashes from choosing where their cells are.
	mix uint64
	// sizes are those of blocks, in tokens: at most sizeOf of them.
	sizes []int
	lists lists
	lanes []lane
	slots []slot
	// retired are the lanes whose holdings are still to be removed, and sweep where that
	// has got to; see sweep.go.
	retired, free []uint32
	sweep         sweep
	// ended: its last source was closed, and it is in the index no more.
	ended bool
}

// slot is one rank of an instance, or a store that its ranks share.
type slot struct {
	instance string
	rank     int // Shared for a store
	open     bool
	everyone bool // a store of all instances
	// stores are the slots of the stores that the ranks of its instance share; ranks is
	// how many of them there are. Both are kept by relate, which changes no list.
	stores []int
	ranks  int
	// dense counts, by tier, the lanes that a prefix has to be held in.
	dense [tiers]int
	// windows are the lanes of which a prefix needs its last blocks.
	windows []uint32
	// age rises whenever what was known is forgotten, or the slot is another's: who walks
	// has to tell.
	age     uint64
	dropped uint64
	// crowded: a group has no lane, so that until all is cleared nothing is said to be held.
	crowded bool
}

// lane is what one source holds of one KV-cache group. A lane that was cleared is
// retired, and its source has another one from then on.
type lane struct {
	slot  int
	group int
	kind  groupKind
	// windowTokens, of a window, is how far it goes back, the next token counted.
	windowTokens int
	retired      bool
	// told are the tiers in which it was told of.
	told tierSet
}

func (x *Index) space(key spaceKey, create bool) *space {
	x.mu.RLock()
	s := x.spaces[key]
	x.mu.RUnlock()
	if s != nil || !create {
		return s
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if s = x.spaces[key]; s == nil {
		s = &space{key: key, budget: x.budget, mix: x.opts.Seed}
		s.budget.spend(spaceBytes)
		s.tables[byHash].init()
		s.tables[byChain].init()
		x.spaces[key] = s
	}
	return s
}

// Bytes are what all that the index knows takes.
func (x *Index) Bytes() int64 { return x.budget.bytes.Load() }

// Blocks returns how many blocks are known; those of several contexts count in each.
func (x *Index) Blocks() (n uint64) {
	for _, s := range x.allSpaces() {
		s.mu.RLock()
		n += uint64(s.records.used) //nolint:gosec // a count
		s.mu.RUnlock()
	}
	return n
}

// Hashes calls visit with what engines call each block and what the index does, 0 for a
// block whose place is not known, until visit returns false. It is true when there was no
// more.
func (x *Index) Hashes(visit func(engine, index uint64) bool) bool {
	for _, s := range x.allSpaces() {
		for n := 0; ; n++ {
			s.mu.RLock()
			if n >= len(s.records.pages) {
				s.mu.RUnlock()
				break
			}
			p := *s.records.pages[n]
			s.mu.RUnlock()
			for i := range p.holders {
				if p.holders[i] != 0 && !visit(uint64(p.hashes[i]), uint64(p.digests[i])) {
					return false
				}
			}
		}
	}
	return true
}

// allSpaces returns the spaces as they are now.
func (x *Index) allSpaces() []*space {
	x.mu.RLock()
	defer x.mu.RUnlock()
	spaces := make([]*space, 0, len(x.spaces))
	for _, s := range x.spaces {
		spaces = append(spaces, s)
	}
	return spaces
}

// keyOf returns a hash's key: engines may count their hashes, or choose them.
func (s *space) keyOf(hash kvevents.Hash) key {
	x := uint64(hash) ^ s.mix
	x *= 0x9E3779B97F4A7C15
	x ^= x >> 32
	x *= 0xD6E8FEB86659FD93
	return key(x >> keyBits)
}

// Tier is where a block is held.
type Tier uint8

// The tiers, from fast to slow.
const (
	GPU Tier = iota
	CPU
	Disk
	tiers = 3
)

// TierOf returns the tier of a medium, in the words of vLLM, SGLang, Mooncake and
// others. ok is false for one that is not known, and for none.
func TierOf(medium string) (tier Tier, ok bool) {
	switch strings.ToLower(medium) {
	case "gpu", "npu", "device":
		return GPU, true
	case "cpu", "cpu_pinned", "cpu_tier1", "cpu_tier2", "host", "dram", "memory":
		return CPU, true
	case "disk", "storage", "ssd", "fs", "obj", "file", "nvme", "external", "remote":
		return Disk, true
	}
	return 0, false
}
