package disk

import (
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// region is a part of the file that is filled from its start on.
type region struct {
	sequence uint64 // of its use; 0: never written to
	first    uint32 // its entries, by behind
	readers  uint32 // reads under way; it is not given up meanwhile
	pages    uint32 // used, with the header's
	// short: the disk had no room for all of its range when it was to be filled
	// again. What it has is served; the policy does not know it.
	short bool
	// birth is the lowest of the records, void ones included; unborn: it has none.
	birth uint32
}

// unborn is the birth of a region without records.
const unborn = ^uint32(0)

// noRegion: none is open.
const noRegion = ^uint32(0)

// regionLog hands out room. It is pure; the tier's lock guards it.
//
// INVARIANT: a region is unused (never written to), idle, short, open, closing, or
// sealed and known to the policy.
type regionLog struct {
	regionPages uint32
	regions     []region
	policy      evict.Policy
	idle        []uint32
	shorts      int // regions that are short
	// unused counts from which region on none was ever written to; limit is how
	// many regions there is room for on the disk, as far as is known.
	unused, limit uint32
	open          uint32
	// closing is full of chunks that are about to be given up: none of them is
	// fetched any more, but all are still known, so that they can be removed.
	closing  uint32
	sequence uint64 // of the latest use
}

// origin is what a region was before it is filled.
type origin uint8

const (
	fresh   origin = iota // never written to; its range is still to be allocated
	emptied               // idle
	filled                // the policy's choice, and closing
)

func newRegionLog(regions, regionPages uint32, policy evict.Policy) regionLog {
	l := regionLog{regionPages: regionPages, regions: make([]region, regions), policy: policy, limit: regions, open: noRegion, closing: noRegion}
	for i := range l.regions {
		l.regions[i].first, l.regions[i].birth = nothing, unborn
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

// reserve takes pages of the open region, for a record of that birth.
//
// REQUIRES: pages <= room().
func (l *regionLog) reserve(pages uint32, birth uint64) place {
	r := &l.regions[l.open]
	r.birth = min(r.birth, uint32(birth))
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

// next picks the region to be filled next. False: there is none, or every one is
// being read.
func (l *regionLog) next() (id uint32, from origin, ok bool) {
	if n := len(l.idle); n > 0 {
		id, l.idle = l.idle[n-1], l.idle[:n-1]
		return id, emptied, true
	}
	if l.unused < l.limit {
		l.unused++
		return l.unused - 1, fresh, true
	}
	if id, ok = l.policy.Victim(func(id uint32) bool { return l.regions[id].readers > 0 }); ok {
		l.closing = id
	}
	return id, filled, ok
}

// giveBack takes back what next has picked and what could not be begun. full: the
// disk has no room for all of its range.
func (l *regionLog) giveBack(id uint32, from origin, full bool) {
	l.closing = noRegion
	switch {
	case full && from == fresh:
		l.unused, l.limit = id, id
	case full:
		l.regions[id].short = true
		l.shorts++
	default:
		l.rest(id)
	}
}

// rest puts a region where next finds it: what has chunks is the policy's.
func (l *regionLog) rest(id uint32) {
	if l.regions[id].first == nothing {
		l.idle = append(l.idle, id)
	} else {
		l.policy.Insert(id, evict.Chunk{Key: uint64(id)})
	}
}

// limited tells whether the disk had no room for some of the regions.
func (l *regionLog) limited() bool { return l.limit < uint32(len(l.regions)) || l.shorts > 0 }

// regrow lets next ask the disk again for what it had no room for.
func (l *regionLog) regrow() {
	l.limit = uint32(len(l.regions))
	for id := range l.regions {
		if r := &l.regions[id]; r.short {
			r.short = false
			l.rest(uint32(id))
		}
	}
	l.shorts = 0
}

// begin opens a region whose header is written.
func (l *regionLog) begin(id uint32, sequence uint64) {
	l.regions[id].sequence, l.regions[id].pages, l.regions[id].birth = sequence, 1, unborn
	l.open = id
}

// touch notes a use of a region.
func (l *regionLog) touch(id uint32) {
	if id != l.open && !l.regions[id].short {
		l.policy.Touch(id)
	}
}
