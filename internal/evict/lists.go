package evict

import "math/bits"

// allClasses is the set of every class.
const allClasses = ^uint64(0)

// nobody is no record.
const nobody = ^uint32(0)

// links are doubly linked lists over record numbers that share their storage: a
// record is in at most one of them. The front is the next to go.
type links []link

type link struct{ toBack, toFront uint32 }

// ends are a list's first and last record, nobody when it is empty.
type ends struct{ front, back uint32 }

// perClass is a list for every class.
type perClass [MaxClasses]ends

func newLinks(records int) links { return make(links, records) }

func emptyLists() (p perClass) {
	for i := range p {
		p[i] = ends{nobody, nobody}
	}
	return p
}

// pushBack puts a record that is in no list behind all others of this one.
func (l links) pushBack(e *ends, record uint32) {
	l[record] = link{nobody, e.back}
	if e.back != nobody {
		l[e.back].toBack = record
	} else {
		e.front = record
	}
	e.back = record
}

// unlink takes a record out of the list it is in.
func (l links) unlink(e *ends, record uint32) {
	front, back := l[record].toFront, l[record].toBack
	if front != nobody {
		l[front].toBack = back
	} else {
		e.front = back
	}
	if back != nobody {
		l[back].toFront = front
	} else {
		e.back = front
	}
}

// oldest returns the record with the smallest stamp, of those in the classes (bit
// i for class i), that is not vetoed, or nobody.
//
// REQUIRES: stamps rise from the front of every list to its back.
func (l links) oldest(p *perClass, classes uint64, stamp []uint64, inUse func(uint32) bool) uint32 {
	best := nobody
	for ; classes != 0; classes &= classes - 1 {
		class := bits.TrailingZeros64(classes)
		// A list whose front is younger than the best has nothing to offer.
		for r := p[class].front; r != nobody && (best == nobody || stamp[r] < stamp[best]); r = l[r].toBack {
			if !inUse(r) {
				best = r
				break
			}
		}
	}
	return best
}

// first returns the first record of the list that is not vetoed, or nobody.
func (l links) first(e *ends, inUse func(uint32) bool) uint32 {
	for r := e.front; r != nobody; r = l[r].toBack {
		if !inUse(r) {
			return r
		}
	}
	return nobody
}

// append moves all records of a list behind those of another.
func (l links) append(to, from *ends) {
	switch {
	case from.front == nobody:
		return
	case to.front == nobody:
		*to = *from
	default:
		l[to.back].toBack, l[from.front].toFront = from.front, to.back
		to.back = from.back
	}
	*from = ends{nobody, nobody}
}
