package prefixindex

import "github.com/mooncake-sidecar/sidecar/conductor/kvevents"

// record is a block that somebody holds. Equal tokens under two hashes are two
// records, and so is one hash of two contexts.
type record struct {
	hash  kvevents.Hash
	chain digest // zero: what is before it is not known, see placed
	// holders is who holds it, see holders.go.
	holders holders
	// meta is its tokens, 0 when not known, and whether another record may have the same
	// digest; of a record that is not in use, the link to the next such.
	meta uint32
}

// recordBytes is what a record takes; the garbage collector finds no pointer in it.
const recordBytes = 32

const (
	metaTwin   = 1 << 31
	metaTokens = metaTwin - 1
)

// placed tells whether it is known what comes before the block: only then can it be
// found by tokens.
func (r *record) placed() bool { return r.chain != digest{} }

// link is a record's number and one; 0 is none.
type link uint32

// maxRecords bounds the records of a space.
const maxRecords = 1<<32 - 2

// pageRecords are the records that are allocated together.
const pageRecords = 512

// records has all records of a space, in pages, so that none is ever moved.
type records struct {
	pages [][]record
	// free is the chain, by meta, of records that are not in use.
	free link
	used int
}

func (r *records) at(l link) *record {
	n := uint32(l) - 1
	return &r.pages[n/pageRecords][n%pageRecords]
}

// take returns an unused record, 0 when budget has no memory for more.
func (r *records) take(budget *budget) link {
	if r.free == 0 {
		if len(r.pages) >= maxRecords/pageRecords || !budget.take(pageRecords*recordBytes) {
			return 0
		}
		r.pages = append(r.pages, make([]record, pageRecords))
		page := r.pages[len(r.pages)-1]
		first := link((len(r.pages)-1)*pageRecords) + 1 //nolint:gosec // at most maxRecords
		for i := range page[1:] {
			page[i].meta = uint32(first) + uint32(i) + 1 //nolint:gosec // at most a page
		}
		r.free = first
	}
	l := r.free
	rec := r.at(l)
	r.free = link(rec.meta)
	*rec = record{}
	r.used++
	return l
}

func (r *records) release(l link) {
	*r.at(l) = record{meta: uint32(r.free)}
	r.free = l
	r.used--
}
