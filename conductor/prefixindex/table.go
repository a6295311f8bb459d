package prefixindex

// The two tables of a space.
const (
	byHash  = 0 // by what engines call a block
	byChain = 1 // by its digest; only placed records
)

// table finds records by a key: extendible hashing. A directory leads from the first
// bits of a key to a segment, in which a record's cell is near the place that the last
// bits say. A segment that is full becomes two, which takes microseconds; nobody ever
// waits for the whole table to be copied. A cell has all bits of the key that any of
// this needs, so that no record is read for it: each record is a cache miss.
type table struct {
	dir      []uint32 // by the first depth bits of a key, the number of a segment
	depth    int
	segments []segment
}

type segment struct {
	cells []cell
	used  int
	depth int // bits that all its keys have in common
}

// cell is a key and a link, 0 when empty.
type cell uint64

const (
	segmentBits  = 10
	segmentCells = 1 << segmentBits
	segmentBytes = segmentCells * 8
	segmentMask  = segmentCells - 1
	placeBytes   = 4 // in a directory
	// fullCells of a segment make it two. More of them is less memory and longer ways.
	fullCells = segmentCells * 13 / 16
	// keyBits are those of a key; maxDepth leaves those that say the place.
	keyBits  = 32
	maxDepth = keyBits - segmentBits
)

// key is the spread bits of a hash or a digest.
type key uint32

// spread makes a key: engines may count their hashes.
func spread(of uint64) key { return key(of * 0x9E3779B97F4A7C15 >> 32) }

// keyOf returns a record's key in a table.
func (r *record) keyOf(which int) key {
	if which == byHash {
		return spread(uint64(r.hash))
	}
	return spread(r.chain.lo)
}

// init gives a table its first segment.
func (t *table) init() {
	t.dir, t.segments = []uint32{0}, []segment{{cells: make([]cell, segmentCells)}}
}

func (t *table) segment(k key) *segment { return &t.segments[t.dir[k>>(keyBits-t.depth)]] }

// probe goes along the records that may have a key.
type probe struct {
	cells []cell
	at    key
	key   key
}

func (t *table) probe(k key) probe { return probe{cells: t.segment(k).cells, at: k, key: k} }

// next returns the next record whose key it is, or 0.
func (p *probe) next() link {
	for {
		s := p.cells[p.at&segmentMask]
		p.at++
		if s == 0 || key(s>>keyBits) == p.key {
			return link(s) //nolint:gosec // the lower half
		}
	}
}

// insert adds a record, false when there is no memory for it.
func (t *table) insert(k key, l link, budget *budget) bool {
	seg := t.segment(k)
	for seg.used >= fullCells && t.split(k, budget) {
		seg = t.segment(k)
	}
	if seg.used == segmentCells-1 { // the last one ends all ways
		return false
	}
	seg.put(cell(k)<<keyBits | cell(l))
	return true
}

func (seg *segment) put(s cell) {
	at := s >> keyBits
	for seg.cells[at&segmentMask] != 0 {
		at++
	}
	seg.cells[at&segmentMask] = s
	seg.used++
}

// split makes two of a key's segment.
func (t *table) split(k key, budget *budget) bool {
	n := t.dir[k>>(keyBits-t.depth)]
	grows, bytes := t.segments[n].depth == t.depth, int64(segmentBytes)
	if grows {
		bytes += int64(len(t.dir)) * placeBytes
	}
	if t.segments[n].depth == maxDepth || !budget.take(bytes) {
		return false
	}
	if grows {
		dir := make([]uint32, 2*len(t.dir))
		for i := range dir {
			dir[i] = t.dir[i/2]
		}
		t.dir = dir
		t.depth++
	}
	old := t.segments[n].cells
	depth := t.segments[n].depth + 1
	t.segments[n] = segment{cells: make([]cell, segmentCells), depth: depth}
	t.segments = append(t.segments, segment{cells: make([]cell, segmentCells), depth: depth})
	// Of the directory's places for it the second half goes to the new one.
	span := key(1) << (t.depth - depth)
	first := k >> (keyBits - t.depth) &^ (2*span - 1)
	for i := range span {
		t.dir[first+span+i] = uint32(len(t.segments) - 1) //nolint:gosec // at most 1<<maxDepth
	}
	for _, s := range old {
		if s != 0 {
			t.segment(key(s >> keyBits)).put(s)
		}
	}
	return true
}

// remove takes a record out.
//
// REQUIRES: it is in there.
func (t *table) remove(k key, l link) {
	seg := t.segment(k)
	cells := seg.cells
	gap := cell(k)
	for link(cells[gap&segmentMask]) != l { //nolint:gosec // the lower half
		gap++
	}
	// What stands behind, up to an empty cell, moves into the gap unless it would stand
	// before its place then.
	for at := gap + 1; ; at++ {
		s := cells[at&segmentMask]
		if s == 0 {
			break
		}
		if away := (at - s>>keyBits) & segmentMask; away >= (at-gap)&segmentMask {
			cells[gap&segmentMask] = s
			gap = at
		}
	}
	cells[gap&segmentMask] = 0
	seg.used--
}
