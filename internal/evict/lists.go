package evict

import "math/bits"

const nobody = ^uint32(0)

// lists are doubly linked lists over record numbers, one per class, that share
// their links: a record is in at most one of them. Front is the next to go.
type lists struct {
	toBack, toFront []uint32
	ends            [MaxClasses]ends
}

// ends are a list's first and last records, nobody when it is empty.
type ends struct{ front, back uint32 }

func newLists(records int) lists {
	l := lists{toBack: make([]uint32, records), toFront: make([]uint32, records)}
	for i := range l.ends {
		l.ends[i] = ends{nobody, nobody}
	}
	return l
}

// pushBack puts a record that is in no list behind all others of the class.
func (l *lists) pushBack(class uint8, record uint32) {
	e := &l.ends[class]
	l.toBack[record], l.toFront[record] = nobody, e.back
	if e.back != nobody {
		l.toBack[e.back] = record
	} else {
		e.front = record
	}
	e.back = record
}

// unlink takes a record out of the class's list.
func (l *lists) unlink(class uint8, record uint32) {
	e := &l.ends[class]
	front, back := l.toFront[record], l.toBack[record]
	if front != nobody {
		l.toBack[front] = back
	} else {
		e.front = back
	}
	if back != nobody {
		l.toFront[back] = front
	} else {
		e.back = front
	}
}

// first returns the record with the smallest stamp, of those in the classes (bit
// i for class i), that is not vetoed, or nobody.
//
// REQUIRES: stamps rise from the front of every list to its back.
func (l *lists) first(classes uint64, stamp []uint64, inUse func(uint32) bool) uint32 {
	best := nobody
	for ; classes != 0; classes &= classes - 1 {
		class := bits.TrailingZeros64(classes)
		// A list whose front is younger than the best has nothing to offer.
		for r := l.ends[class].front; r != nobody && (best == nobody || stamp[r] < stamp[best]); r = l.toBack[r] {
			if !inUse(r) {
				best = r
				break
			}
		}
	}
	return best
}
