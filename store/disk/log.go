package disk

import (
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// region is a part of the file that is filled from its start on.
type region struct {
	sequence uint64 // of its use; 0: never written to
	first    uint32 // its entries, by behind
	readers  uint32 // reads and removals under way; it is not given up meanwhile
	pages    uint32 // used, with the header's
}

// noRegion: none is open.
const noRegion = ^uint32(0)

// regionLog hands out room. It is pure; the tier's lock guards it.
//
// INVARIANT: a region is unused (never written to), idle, open, or sealed and
// known to the policy.
type regionLog struct {
	regionPages uint32
	regions     []region
	policy      evict.Policy
	idle        []uint32
	// unused counts from which region on none was ever written to; limit is how
	// many regions there is room for on the disk, as far as is known.
	unused, limit uint32
	open          uint32
	sequence      uint64 // of the latest use
}

func newRegionLog(regions, regionPages uint32, policy evict.Policy) regionLog {
	l := regionLog{regionPages: regionPages, regions: make([]region, regions), policy: policy, limit: regions, open: noRegion}
	for i := range l.regions {
		l.regions[i].first = nothing
	}
	return l
}

// room returns how many pages the open region still has.
func (l *regionLog) room() uint32 {
	if l.open == noRegion {
		return 0
	}
	return l.regionPages - l.regions[l.open].pages
}

// reserve takes pages of the open region.
//
// REQUIRES: pages <= room().
func (l *regionLog) reserve(pages uint32) place {
	r := &l.regions[l.open]
	p := place{region: l.open, page: r.pages, pages: pages, sequence: r.sequence}
	r.pages += pages
	return p
}

// seal closes the open region: the policy may name it from now on.
func (l *regionLog) seal() {
	if l.open != noRegion {
		l.policy.Insert(l.open, evict.Chunk{Key: uint64(l.open)})
		l.open = noRegion
	}
}

// next picks the region to be filled next: an idle one, a new one that has to be
// allocated in the file, or what the policy names, whose entries are to be
// dropped. False: every region is being read.
func (l *regionLog) next() (id uint32, grow, evicted, ok bool) {
	if n := len(l.idle); n > 0 {
		id, l.idle = l.idle[n-1], l.idle[:n-1]
		return id, false, false, true
	}
	if l.unused < l.limit {
		l.unused++
		return l.unused - 1, true, false, true
	}
	id, ok = l.policy.Victim(func(id uint32) bool { return l.regions[id].readers > 0 })
	return id, false, ok, ok
}

// begin opens a region whose header is written.
func (l *regionLog) begin(id uint32, sequence uint64) {
	l.regions[id].sequence, l.regions[id].pages = sequence, 1
	l.open = id
}

// touch notes a use of a region.
func (l *regionLog) touch(id uint32) {
	if id != l.open {
		l.policy.Touch(id)
	}
}
