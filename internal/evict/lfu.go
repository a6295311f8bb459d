package evict

import (
	"math"
	"math/bits"
)

// LFU evicts the chunk with the fewest uses, among equals the one whose last is
// longest ago. Uses are counted from insertion on and forgotten with the chunk.
// 21 bytes a record, and 20 for each different count.
//
// Chunks of equal count stand in one list, the lists of a class in the order of
// their counts, so that a use moves a chunk to a neighbour.
type LFU struct {
	links  links
	class  []uint8
	level  []uint32 // by record: index in levels
	stamp  []uint64 // by record: last use, in uses
	levels []level
	spare  uint32             // list of free levels, by above
	lowest [MaxClasses]uint32 // level, nobody for none
	now    uint64
	n      int
}

// level holds the chunks of a class with one count.
type level struct {
	uses         uint32 // the last count stands for all above it, too
	ends         ends
	above, below uint32 // neighbours by count
}

var _ Policy = (*LFU)(nil)

// NewLFU returns a policy for the records [0, records).
func NewLFU(records int) *LFU {
	f := &LFU{links: newLinks(records), class: make([]uint8, records), level: make([]uint32, records), stamp: make([]uint64, records), spare: nobody}
	for i := range f.lowest {
		f.lowest[i] = nobody
	}
	return f
}

// Name implements Policy.
func (f *LFU) Name() string { return NameLFU }

// Len implements Policy.
func (f *LFU) Len() int { return f.n }

// Insert implements Policy.
func (f *LFU) Insert(record uint32, chunk Chunk) {
	class := chunk.Class
	f.class[record] = class
	low := f.lowest[class]
	if low == nobody || f.levels[low].uses != 1 {
		low = f.addLevel(class, 1, nobody)
	}
	f.push(low, record)
	f.n++
}

// Touch implements Policy.
func (f *LFU) Touch(record uint32) {
	from := f.level[record]
	to := from
	if uses := f.levels[from].uses; uses < math.MaxUint32 {
		if to = f.levels[from].above; to == nobody || f.levels[to].uses != uses+1 {
			to = f.addLevel(f.class[record], uses+1, from)
		}
	}
	f.pull(record)
	f.push(to, record)
	if to != from {
		f.dropIfEmpty(from, f.class[record])
	}
}

// Remove implements Policy.
func (f *LFU) Remove(record uint32) {
	at := f.level[record]
	f.pull(record)
	f.dropIfEmpty(at, f.class[record])
	f.n--
}

// Victim implements Policy.
func (f *LFU) Victim(inUse func(uint32) bool) (uint32, bool) { return f.VictimOf(allClasses, inUse) }

// VictimOf implements Policy.
func (f *LFU) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	best := nobody
	for ; classes != 0; classes &= classes - 1 {
		if r := f.first(bits.TrailingZeros64(classes), inUse, best); r != nobody {
			best = r
		}
	}
	if best == nobody {
		return 0, false
	}
	f.Remove(best)
	return best, true
}

// before tells whether a goes before b.
func (f *LFU) before(a, b uint32) bool {
	if x, y := f.levels[f.level[a]].uses, f.levels[f.level[b]].uses; x != y {
		return x < y
	}
	return f.stamp[a] < f.stamp[b]
}

// first returns the first record of the class that is not vetoed and goes before
// limit, or nobody. A limit of nobody is none.
func (f *LFU) first(class int, inUse func(uint32) bool, limit uint32) uint32 {
	for at := f.lowest[class]; at != nobody; at = f.levels[at].above {
		for r := f.levels[at].ends.front; r != nobody; r = f.links[r].toBack {
			if limit != nobody && f.before(limit, r) {
				return nobody
			}
			if !inUse(r) {
				return r
			}
		}
	}
	return nobody
}

func (f *LFU) push(at, record uint32) {
	f.now++
	f.stamp[record], f.level[record] = f.now, at
	f.links.pushBack(&f.levels[at].ends, record)
}

func (f *LFU) pull(record uint32) { f.links.unlink(&f.levels[f.level[record]].ends, record) }

// addLevel makes an empty level above another one, or the lowest.
func (f *LFU) addLevel(class uint8, uses, below uint32) uint32 {
	at := f.spare
	if at == nobody {
		at = uint32(len(f.levels))
		f.levels = append(f.levels, level{})
	} else {
		f.spare = f.levels[at].above
	}
	above := f.lowest[class]
	if below != nobody {
		above = f.levels[below].above
		f.levels[below].above = at
	} else {
		f.lowest[class] = at
	}
	if above != nobody {
		f.levels[above].below = at
	}
	f.levels[at] = level{uses: uses, ends: ends{nobody, nobody}, above: above, below: below}
	return at
}

func (f *LFU) dropIfEmpty(at uint32, class uint8) {
	l := f.levels[at]
	if l.ends.front != nobody {
		return
	}
	if l.below != nobody {
		f.levels[l.below].above = l.above
	} else {
		f.lowest[class] = l.above
	}
	if l.above != nobody {
		f.levels[l.above].below = l.below
	}
	f.levels[at].above = f.spare
	f.spare = at
}
