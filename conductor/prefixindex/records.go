package prefixindex

import (
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// link is a record's number and one; 0 is none. A record is a block that somebody holds.
// Equal tokens under two hashes are two records, and so is one hash of two contexts.
type link uint32

// maxRecords bounds the records of a space.
const maxRecords = 1<<32 - 2

// pageRecords are the records that are allocated together.
const pageRecords = 512

// page has records in columns, so that who goes along a run reads no more of them than
// is asked for. The garbage collector finds no pointer in it.
type page struct {
	hashes [pageRecords]kvevents.Hash
	// digests are 0 of a record of which it is not known what comes before it: only the
	// others, which are placed, can be found by tokens.
	digests [pageRecords]digest
	// holders is who holds it, see holders.go; 0 of a record that is not in use.
	holders [pageRecords]holders
	info    [pageRecords]info
	// free has a bit for each record that is not in use, left of them.
	free [pageRecords / 64]uint64
	left uint32
	// before and behind are the neighbours in a list of pages, by their numbers and one.
	before, behind uint32
}

// recordsBytes is what a page takes, as the memory allocator rounds it.
const recordsBytes = 10880

// info is the size of a record's block, by its place in space.sizes, and two flags.
type info uint8

const (
	// isTwin: another record may have the same digest.
	isTwin info = 1 << 7
	// follows: the block comes behind the one of the record before, by which it is found:
	// it has no cell in the table of digests.
	follows info = 1 << 6
	sizeOf  info = follows - 1
)

// records has all records of a space, in pages, so that none is ever moved. They are
// taken one behind the other from the page that has most to give: what an event tells of
// stands together.
type records struct {
	pages []*page
	used  int
	// filling is the number and one of the page that records are taken from, 0 for none;
	// what is free in it before from was given back meanwhile.
	filling uint32
	from    int
	// lists are the other pages of which some records are free, by the logarithm of how
	// many: the number and one of the first page. A bit of some is set for each list that
	// is not empty.
	lists [pageLists]uint32
	some  uint16
}

const pageLists = 10 // one more than the logarithm of pageRecords

// of returns a record's page, and its place in there.
func (r *records) of(l link) (*page, uint32) {
	n := uint32(l) - 1
	return r.pages[n/pageRecords], n % pageRecords
}

func (r *records) hash(l link) kvevents.Hash { p, i := r.of(l); return p.hashes[i] }
func (r *records) digest(l link) digest      { p, i := r.of(l); return p.digests[i] }
func (r *records) holders(l link) *holders   { p, i := r.of(l); return &p.holders[i] }
func (r *records) info(l link) *info         { p, i := r.of(l); return &p.info[i] }

// placed tells whether it is known what comes before a block.
func (r *records) placed(l link) bool { return r.digest(l) != 0 }

// follower returns the record that is found by l, 0 for none and for no l.
func (r *records) follower(l link) link {
	if l == 0 || int(l) >= len(r.pages)*pageRecords || *r.info(l + 1)&follows == 0 {
		return 0
	}
	return l + 1
}

// take returns an unused record, 0 when budget has no memory for more.
func (r *records) take(budget *budget) link {
	for {
		if r.filling != 0 {
			p := r.pages[r.filling-1]
			if i, ok := p.nextFree(r.from); ok {
				p.free[i/64] &^= 1 << (i % 64)
				p.left--
				r.used++
				r.from = i + 1
				return link(int(r.filling-1)*pageRecords + i + 1) //nolint:gosec // at most maxRecords
			}
			r.enlist(r.filling)
			r.filling = 0
		}
		if !r.turn(budget) {
			return 0
		}
	}
}

// turn chooses the next page to take records from.
func (r *records) turn(budget *budget) bool {
	if r.some != 0 {
		r.filling, r.from = r.lists[bits.Len16(r.some)-1], 0
		r.unlist(r.filling)
		return true
	}
	if len(r.pages) >= maxRecords/pageRecords || !budget.take(recordsBytes) {
		return false
	}
	p := &page{left: pageRecords}
	for i := range p.free {
		p.free[i] = 1<<64 - 1
	}
	r.pages = append(r.pages, p)
	r.filling, r.from = uint32(len(r.pages)), 0 //nolint:gosec // checked
	return true
}

// nextFree returns the first record from one on that is not in use.
func (p *page) nextFree(from int) (i int, ok bool) {
	if from == pageRecords {
		return 0, false
	}
	word := p.free[from/64] &^ (1<<(from%64) - 1)
	for at := from / 64; ; word = p.free[at] {
		if word != 0 {
			return at*64 + bits.TrailingZeros64(word), true
		}
		if at++; at == len(p.free) {
			return 0, false
		}
	}
}

// release gives a record back, and forgets what is in it.
func (r *records) release(l link) {
	p, i := r.of(l)
	p.hashes[i], p.digests[i], p.holders[i], p.info[i] = 0, 0, 0, 0
	n := (uint32(l)-1)/pageRecords + 1
	// A page is in another list when it has twice as many.
	moves := n != r.filling && p.left&(p.left+1) == 0
	if moves {
		r.unlist(n)
	}
	p.free[i/64] |= 1 << (i % 64)
	p.left++
	r.used--
	if moves {
		r.enlist(n)
	}
}

// enlist enters a page into its list, if there is anything to be had of it.
func (r *records) enlist(n uint32) {
	p := r.pages[n-1]
	if p.left == 0 {
		return
	}
	list := bits.Len32(p.left) - 1
	p.before, p.behind = 0, r.lists[list]
	if p.behind != 0 {
		r.pages[p.behind-1].before = n
	}
	r.lists[list] = n
	r.some |= 1 << list
}

// unlist takes a page out of its list, if it is in one.
func (r *records) unlist(n uint32) {
	p := r.pages[n-1]
	if p.left == 0 {
		return
	}
	list := bits.Len32(p.left) - 1
	if p.behind != 0 {
		r.pages[p.behind-1].before = p.before
	}
	if p.before != 0 {
		r.pages[p.before-1].behind = p.behind
	} else if r.lists[list] = p.behind; p.behind == 0 {
		r.some &^= 1 << list
	}
	p.before, p.behind = 0, 0
}
