package prefixindex

import "math/bits"

// The two tables of a space.
const (
	byHash  = 0 // by what engines call a block
	byChain = 1 // by its digest; only placed records that follow none
)

// table finds records by a key: extendible hashing. A directory leads from the first
// bits of a key to a segment, in which a record's cell is in the bucket that the next bits
// say, or, where that is full, in the first one behind it that is not. A bucket is a line
// of the processor's cache and knows how many have passed it by, so that segments can be
// nearly full. One that is gets another unit, up to segmentUnits of them, and then becomes
// two, which takes microseconds: nobody ever waits for the whole table to be copied, and
// nothing is left for the garbage collector. A cell has all bits of the key that any of
// this needs, so that no record is read for it: each is a cache miss.
type table struct {
	dir   []*segment // by the first depth bits of a key
	depth int
	// beyond are cells that segments have no room for, see crowd.go.
	beyond [][]cell
}

type segment struct {
	units [segmentUnits]*unit
	count uint8  // of units
	depth uint8  // bits that all its keys have in common
	used  uint16 // cells, with those beyond
	// beyond is where its cells beyond are in the table, and one; 0 for none yet.
	beyond uint32
}

// unit is a part of a segment: they are taken one by one and never given back.
type unit [unitBuckets]bucket

// bucket has in the bytes of tags one of each cell's key, 0 for an empty one, so that
// all are compared at once, and in the last byte how many cells passed it by, for want of
// room: they are in buckets behind it. maxPassed are not counted any more.
type bucket struct {
	tags  uint64
	cells [bucketCells]cell
}

// cell is a key and a link.
type cell uint64

const (
	bucketCells  = 7
	unitBuckets  = 16
	unitCells    = unitBuckets * bucketCells
	unitBytes    = unitBuckets * 64
	segmentUnits = 7 // with them a segment is a line of the cache, too
	segmentCells = segmentUnits * unitCells
	segmentBytes = 64
	placeBytes   = 8 // in a directory
	tableBytes   = segmentBytes + unitBytes + placeBytes
	// keyBits are those of a key; maxDepth leaves those that say the bucket.
	keyBits  = 32
	maxDepth = keyBits - 10

	eachTag   = 0x0001010101010101
	tagEnds   = eachTag << 7
	passed    = 1 << 56 // one cell
	maxPassed = 255
)

// full is how many of some units' cells may be used before there are to be more of them:
// the more, the less memory and the longer the ways.
func full(units int) int { return units * unitCells * 7 / 8 }

// moreUnits is how many there are to be of them where so many are full: the fewer, the
// less memory and the more often a cell is moved.
func moreUnits(units int) int { return min(units+1+units/2, segmentUnits) }

// unitsFor returns how many units some cells get.
func unitsFor(cells int) int {
	n := 1
	for n < segmentUnits && cells > full(n)*15/16 {
		n = moreUnits(n)
	}
	return n
}

// key is the first bits of a digest, or of a mixed hash.
type key uint32

func (d digest) key() key { return key(d >> keyBits) }

// tag is a key's in all bytes of a bucket's tags: of its last bits, which say no bucket.
func (k key) tag() uint64 { return uint64(max(k&0xff, 1)) * eachTag }

func (c cell) key() key { return key(c >> keyBits) }

// init gives a table its first segment.
func (t *table) init() { t.dir = []*segment{{units: [segmentUnits]*unit{{}}, count: 1}} }

func (t *table) segment(k key) *segment { return t.dir[k>>(keyBits-t.depth)] }

func (s *segment) bucket(i uint32) *bucket { return &s.units[i/unitBuckets][i%unitBuckets] }

// buckets is how many there are.
func (s *segment) buckets() uint32 { return uint32(s.count) * unitBuckets }

// home returns the bucket that a key says.
func (s *segment) home(k key) uint32 {
	return uint32(uint64(k<<s.depth) * uint64(s.buckets()) >> keyBits) //nolint:gosec // less than buckets
}

// after returns the bucket behind one; the first is behind the last.
func (s *segment) after(i uint32) uint32 {
	if i++; i < s.buckets() {
		return i
	}
	return 0
}

// match has a bit in the byte of each cell that may have a tag, and of each that has.
func (b *bucket) match(tag uint64) uint64 {
	x := b.tags ^ tag
	return (x - eachTag) &^ x & tagEnds
}

// room returns the first empty cell, bucketCells when there is none.
func (b *bucket) room() int { return bits.TrailingZeros64((b.tags-eachTag)&^b.tags&tagEnds|1<<63) / 8 }

// probe goes along the records that may have a key.
type probe struct {
	table   *table
	segment *segment
	bucket  *bucket
	left    uint64 // of the bucket's matches
	at      uint32 // the bucket
	tried   uint32 // buckets
	key     key
	past    uint32 // cells beyond
}

func (t *table) probe(k key) probe {
	s := t.segment(k)
	at := s.home(k)
	b := s.bucket(at)
	return probe{table: t, segment: s, bucket: b, left: b.match(k.tag()), at: at, key: k}
}

// next returns the next record whose key it is, or 0.
func (p *probe) next() link {
	for {
		for p.left != 0 {
			c := p.bucket.cells[bits.TrailingZeros64(p.left)/8]
			p.left &= p.left - 1
			if c != 0 && c.key() == p.key { // a tag may be taken for another one
				return link(c) //nolint:gosec // the lower half
			}
		}
		if p.tried++; p.bucket.tags < passed || p.tried >= p.segment.buckets() {
			if p.segment.beyond == 0 {
				return 0
			}
			return p.nextBeyond()
		}
		p.at = p.segment.after(p.at)
		p.bucket = p.segment.bucket(p.at)
		p.left = p.bucket.match(p.key.tag())
	}
}

// insert adds a record, false when there is no memory for it, or when it has too many
// keys like it.
func (t *table) insert(k key, l link, budget *budget) bool {
	s, crowded := t.segment(k), false
	for int(s.used) >= full(int(s.count)) {
		var more bool
		if more, crowded = t.enlarge(k, budget); !more {
			break
		}
		s = t.segment(k)
	}
	c := cell(k)<<keyBits | cell(l)
	switch {
	case int(s.used) < int(s.count)*unitCells:
		s.put(c)
	case !crowded || !t.putBeyond(s, c, budget):
		return false
	}
	s.used++
	return true
}

// put adds a cell.
//
// REQUIRES: there is room.
func (s *segment) put(c cell) {
	at := s.home(c.key())
	b := s.bucket(at)
	i := b.room()
	for i == bucketCells {
		if b.tags < maxPassed*passed {
			b.tags += passed
		}
		at = s.after(at)
		b = s.bucket(at)
		i = b.room()
	}
	b.cells[i] = c
	b.tags |= c.key().tag() & (0xff << (8 * i))
}

// remove takes a record out.
//
// REQUIRES: it is in there.
func (t *table) remove(k key, l link) {
	s := t.segment(k)
	c := cell(k)<<keyBits | cell(l)
	if t.removeBeyond(s, c) {
		s.used--
		return
	}
	for at := s.home(k); ; at = s.after(at) {
		b := s.bucket(at)
		for left := b.match(k.tag()); left != 0; left &= left - 1 {
			if i := bits.TrailingZeros64(left) / 8; b.cells[i] == c {
				b.cells[i] = 0
				b.tags &^= 0xff << (8 * i)
				s.used--
				t.fetchBeyond(s)
				return
			}
		}
		if b.tags < maxPassed*passed {
			b.tags -= passed
		}
	}
}

// enlarge makes more room where a key's cell is. There is none to be had when it is crowded
// there, or for want of memory.
func (t *table) enlarge(k key, budget *budget) (more, crowded bool) {
	s := t.segment(k)
	switch {
	case s.count < segmentUnits:
		return t.addUnits(s, budget), false
	case t.crowded(s):
		return false, true
	}
	return t.split(s, k, budget)
}

// addUnits adds to a segment's, false when there is no memory.
func (t *table) addUnits(s *segment, budget *budget) bool {
	more := moreUnits(int(s.count)) - int(s.count)
	if !budget.take(int64(more) * unitBytes) {
		return false
	}
	var room cellRoom
	cells := s.gather(room[:])
	for range more {
		s.units[s.count] = &unit{}
		s.count++
	}
	s.fill(cells)
	return true
}

// split makes two of a key's segment, if it is not crowded and there is memory.
func (t *table) split(s *segment, k key, budget *budget) (done, crowded bool) {
	var own, ownHalves cellRoom
	room, halves := own[:], ownHalves[:]
	beyond := t.beyondOf(s)
	if len(beyond) > 0 {
		room, halves = make([]cell, len(own)+len(beyond)), make([]cell, len(own)+len(beyond))
	}
	depth := s.depth + 1
	cells := s.gather(room)
	first, second := divide(append(cells, beyond...), depth, halves)
	if !parts(len(first), len(second)) {
		return false, true
	}
	low, high := unitsFor(len(first)), unitsFor(len(second))
	low = max(low, segmentUnits-high) // none is given up
	bytes := int64(low+high-segmentUnits)*unitBytes + segmentBytes
	if int(s.depth) == t.depth {
		bytes += int64(len(t.dir)) * placeBytes
	}
	if !budget.take(bytes) {
		return false, false
	}
	if int(s.depth) == t.depth {
		t.double()
	}
	// Of the directory's places for it the second half goes to the new one.
	other := &segment{depth: depth, count: uint8(high)} //nolint:gosec // at most segmentUnits
	span := 1 << (t.depth - int(depth))
	from := int(k>>(keyBits-t.depth)) &^ (2*span - 1)
	for i := range span {
		t.dir[from+span+i] = other
	}
	units := s.units[:]
	*s = segment{units: s.units, depth: depth, count: uint8(low), beyond: s.beyond} //nolint:gosec // at most segmentUnits
	given := copy(other.units[:high], units[low:])
	clear(units[low:])
	for i := given; i < high; i++ {
		other.units[i] = &unit{}
	}
	first, second = t.shareBeyond(s, other, first, second)
	s.fill(first)
	other.fill(second)
	s.used += uint16(len(t.beyondOf(s)))         //nolint:gosec // at most maxBeyond
	other.used += uint16(len(t.beyondOf(other))) //nolint:gosec // at most maxBeyond
	return true, false
}

// cellRoom is for a segment's cells, and for an empty one behind them.
type cellRoom [segmentCells + 1]cell

// gather returns the cells that are in a segment.
//
// REQUIRES: room has a cellRoom's length, or more.
func (s *segment) gather(room []cell) []cell {
	n := 0
	for _, u := range s.units[:s.count] {
		for i := range u {
			for _, c := range &u[i].cells {
				room[n] = c // an empty one is overwritten
				n += int((c | -c) >> 63)
			}
		}
	}
	return room[:n]
}

// divide puts cells in two halves, by the last of so many bits of their keys.
func divide(cells []cell, depth uint8, room []cell) (first, second []cell) {
	i, j := 0, len(room)
	for _, c := range cells {
		if c>>(2*keyBits-depth)&1 == 0 {
			room[i] = c
			i++
		} else {
			j--
			room[j] = c
		}
	}
	return room[:i], room[j:]
}

// fill puts cells in place of all that a segment has.
//
// REQUIRES: there is room.
func (s *segment) fill(cells []cell) {
	for _, u := range s.units[:s.count] {
		*u = unit{}
	}
	for _, c := range cells {
		s.put(c)
	}
	s.used = uint16(len(cells)) //nolint:gosec // a segment's
}

// double makes two places of each in the directory.
func (t *table) double() {
	dir := make([]*segment, 2*len(t.dir))
	for i := range dir {
		dir[i] = t.dir[i/2]
	}
	t.dir = dir
	t.depth++
}
