package disk

import (
	"crypto/sha256"
	"maps"
	"slices"
)

// mark names what a removal is about: a digest over its kind and its words, so
// that marks of all kinds stand in one table. Two that are alike by chance remove
// a chunk too many.
type mark [16]byte

func markOf(kind byte, words ...[]byte) mark {
	h := sha256.New()
	_, _ = h.Write([]byte{kind}) // it never fails
	for _, w := range words {
		_, _ = h.Write(w)
	}
	return mark(h.Sum(nil)[:16])
}

func namespaceMark(ns *[32]byte) mark          { return markOf('n', ns[:]) }
func tagMark(tag string) mark                  { return markOf('t', []byte(tag)) }
func taggedMark(ns *[32]byte, tag string) mark { return markOf('b', ns[:], []byte(tag)) }
func chunkMark(key [2]uint64) mark             { return markOf('c', wordsOf(key)) }
func taggedChunkMark(key [2]uint64, tag string) mark {
	return markOf('d', wordsOf(key), []byte(tag))
}

func wordsOf(key [2]uint64) []byte {
	return le.AppendUint64(le.AppendUint64(nil, key[0]), key[1])
}

// removals says what was removed. Every removal has a number; a chunk's birth is
// the number of the latest when the chunk was handed over, and stands in its
// record. A chunk is void if a removal with a higher number than its birth names
// it: wherever its record is, whoever knows of it, whenever it is found. So a
// removal is done when this list is on the disk, and no record is touched.
//
// It is pure; the tier's lock guards it.
type removals struct {
	identity uint64 // of the data file
	count    uint64 // removals so far: the latest's number
	// floor: what was born before this number is void, whatever it is.
	floor uint64
	// wide is the number of the latest removal that was not of single chunks.
	wide uint64
	// since has, by mark, the number of the latest removal; lines are those and
	// earlier ones in their order. What a snapshot has of lines is not written to.
	since map[mark]uint64
	lines []removalLine
	// void are regions of which all records are void until the region is begun
	// anew: their records are on the disk, and in no catalog. A removal that goes
	// by the catalog would miss them.
	void map[uint32]bool // true: it may stand so in the file
}

type removalLine struct {
	mark   mark
	number uint64
}

// maxRemovalLines bounds the list. Beyond, the oldest chunks are given up, as many
// as it takes to be rid of half of it: see bound.
const maxRemovalLines = 1 << 18

func newRemovals(identity uint64) removals {
	return removals{identity: identity, since: map[mark]uint64{}, void: map[uint32]bool{}}
}

// add notes a removal of chunks one by one.
func (l *removals) add(marks ...mark) {
	l.count++
	for _, m := range marks {
		l.set(m, l.count)
	}
	l.bound()
}

// addWide notes a removal of what has a namespace or a tag.
func (l *removals) addWide(m mark) {
	l.add(m)
	l.wide = l.count
}

// addAll notes a removal of everything.
func (l *removals) addAll() { l.raise(l.count + 1) }

// supersede voids the records of a chunk that were born before another of it.
func (l *removals) supersede(m mark, birth uint64) {
	if l.since[m] < birth {
		l.set(m, birth)
		l.bound()
	}
}

func (l *removals) set(m mark, number uint64) {
	l.since[m] = number
	l.lines = append(l.lines, removalLine{m, number})
}

// raise voids all that was born before a number.
func (l *removals) raise(floor uint64) {
	l.floor = max(l.floor, floor)
	l.count = max(l.count, floor)
	l.wide = l.count
	l.forget(floor)
}

// bound keeps the list within its limit.
func (l *removals) bound() {
	if len(l.lines) <= maxRemovalLines {
		return
	}
	l.forget(0)
	if n := len(l.lines); n > maxRemovalLines*3/4 {
		numbers := make([]uint64, n) // not in the order of the lines: see supersede
		for i := range l.lines {
			numbers[i] = l.lines[i].number
		}
		slices.Sort(numbers)
		l.count++ // those who have counted with the floor before look again
		l.raise(numbers[n/2])
	}
}

// forget drops the lines that void nothing which was born at lowest or later, and
// those that have a successor.
func (l *removals) forget(lowest uint64) (dropped bool) {
	var kept []removalLine // snapshots have the old ones
	for _, line := range l.lines {
		switch latest := l.since[line.mark]; {
		case latest != line.number:
		case line.number <= lowest:
			delete(l.since, line.mark)
		default:
			kept = append(kept, line)
		}
	}
	dropped = len(kept) < len(l.lines)
	l.lines = kept
	return dropped
}

// counts tells whether a chunk is not void.
func (l *removals) counts(c *Chunk, birth uint64) bool {
	if birth >= l.count {
		return true
	}
	key := keyOf(&c.Key)
	return birth >= l.threshold(&c.Namespace, c.Tag) &&
		birth >= l.since[chunkMark(key)] && birth >= l.since[taggedChunkMark(key, c.Tag)]
}

// threshold is the lowest birth of chunks that count, as far as namespace and tag
// say.
func (l *removals) threshold(ns *[32]byte, tag string) uint64 {
	if len(l.since) == 0 {
		return l.floor
	}
	return max(l.floor, l.since[namespaceMark(ns)], l.since[tagMark(tag)], l.since[taggedMark(ns, tag)])
}

// voidRegion voids what is in a region.
func (l *removals) voidRegion(id uint32) {
	if _, known := l.void[id]; !known {
		l.void[id] = false
	}
}

// readable: the regions will be looked through. What is void as far as the file
// says stays so.
func (l *removals) readable() {
	maps.DeleteFunc(l.void, func(_ uint32, noted bool) bool { return !noted })
}

// begun: the region has a new header. It tells whether the file has to be told.
func (l *removals) begun(id uint32) bool {
	noted := l.void[id]
	delete(l.void, id)
	return noted
}

// unnoted tells whether regions are void that are not in the file.
func (l *removals) unnoted() bool {
	for _, noted := range l.void {
		if !noted {
			return true
		}
	}
	return false
}
