package evict

import "math/bits"

const (
	// slotRing slots are told apart by age; what is older is ancient.
	slotRing = 64
	// buckets of ages, the last of them ancient.
	buckets = 13
)

// bucketEdges are the ages in slots at which the next bucket begins.
var bucketEdges = [buckets - 1]uint32{1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, slotRing}

// bucketOf returns the bucket of an age in slots.
func bucketOf(age uint32) int {
	for b, e := range bucketEdges {
		if age < e {
			return b
		}
	}
	return buckets - 1
}

// place is a kind and an age bucket: kind*buckets + bucket.
const places = kinds * buckets

// agedLists are the chunks of one class, by kind and by the slot of their last
// use. A list's front is the next to go.
type agedLists struct {
	ring    [kinds][slotRing]ends // by slot, its low bits
	ancient [kinds]ends
	// some has bit i for a ring list i that is not empty.
	some [kinds]uint64
	// cursor: the places that are ranked below have no chunk.
	cursor int
}

func newAgedLists() *agedLists {
	a := &agedLists{}
	for k := range a.ring {
		a.ancient[k] = ends{nobody, nobody}
		for i := range a.ring[k] {
			a.ring[k][i] = ends{nobody, nobody}
		}
	}
	return a
}

// push lists a record that was last used in slot last.
func (a *agedLists) push(l links, record uint32, kind int, last, slot uint32) {
	if slot-last >= slotRing {
		l.pushBack(&a.ancient[kind], record)
	} else {
		l.pushBack(&a.ring[kind][last%slotRing], record)
		a.some[kind] |= 1 << (last % slotRing)
	}
	a.cursor = 0
}

func (a *agedLists) unlink(l links, record uint32, kind int, last, slot uint32) {
	if slot-last >= slotRing {
		l.unlink(&a.ancient[kind], record)
		return
	}
	e := &a.ring[kind][last%slotRing]
	l.unlink(e, record)
	if e.front == nobody {
		a.some[kind] &^= 1 << (last % slotRing)
	}
}

// nextSlot makes room for a slot: what was used as long ago as the ring reaches
// becomes ancient.
func (a *agedLists) nextSlot(l links, slot uint32) {
	at := slot % slotRing
	for k := range a.ring {
		if a.some[k]>>at&1 == 1 {
			l.append(&a.ancient[k], &a.ring[k][at])
			a.some[k] &^= 1 << at
		}
	}
	a.cursor = 0
}

// oldest returns the first record of a place that is not vetoed, or nobody, and
// whether the place has any.
func (a *agedLists) oldest(l links, place int, slot uint32, inUse func(uint32) bool) (record uint32, some bool) {
	kind, bucket := place/buckets, place%buckets
	if bucket == buckets-1 {
		return l.first(&a.ancient[kind], inUse), a.ancient[kind].front != nobody
	}
	// Bit 63-i is for age i.
	ages := bits.RotateLeft64(a.some[kind], int(slotRing-1-slot%slotRing)) & bucketMask(bucket)
	some = ages != 0
	for ; ages != 0; ages &= ages - 1 {
		age := slotRing - 1 - uint32(bits.TrailingZeros64(ages))
		if r := l.first(&a.ring[kind][(slot-age)%slotRing], inUse); r != nobody {
			return r, true
		}
	}
	return nobody, some
}

// bucketMask has the bits of a bucket's ages, 63-i for age i.
func bucketMask(bucket int) uint64 {
	from := uint32(0)
	if bucket > 0 {
		from = bucketEdges[bucket-1]
	}
	n := bucketEdges[bucket] - from
	return (^uint64(0) >> (slotRing - n)) << (slotRing - from - n)
}
