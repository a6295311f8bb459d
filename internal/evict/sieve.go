package evict

import "math/bits"

// SIEVE keeps chunks in the order of their insertion. A hand goes round from the
// oldest to the youngest; it spares, once, what was used since it last came by
// (Zhang et al., NSDI 2024). A use moves nothing. 18 bytes a record.
//
// Each class has a hand of its own. Across classes the victim comes from where
// the hand stands at the oldest chunk.
type SIEVE struct {
	links    links
	lists    perClass
	hands    [MaxClasses]uint32 // nobody: at the front
	class    []uint8
	visited  []bool
	inserted []uint64 // in insertions
	now      uint64
	n        int
	inClass  [MaxClasses]int
}

var _ Policy = (*SIEVE)(nil)

// NewSIEVE returns a policy for the records [0, records).
func NewSIEVE(records int) *SIEVE {
	s := &SIEVE{
		links: newLinks(records), lists: emptyLists(),
		class: make([]uint8, records), visited: make([]bool, records), inserted: make([]uint64, records),
	}
	for i := range s.hands {
		s.hands[i] = nobody
	}
	return s
}

// Name implements Policy.
func (s *SIEVE) Name() string { return NameSIEVE }

// Len implements Policy.
func (s *SIEVE) Len() int { return s.n }

// Insert implements Policy.
func (s *SIEVE) Insert(record uint32, chunk Chunk) {
	s.now++
	s.class[record], s.visited[record], s.inserted[record] = chunk.Class, false, s.now
	s.links.pushBack(&s.lists[chunk.Class], record)
	s.inClass[chunk.Class]++
	s.n++
}

// Touch implements Policy.
func (s *SIEVE) Touch(record uint32) { s.visited[record] = true }

// Remove implements Policy.
func (s *SIEVE) Remove(record uint32) {
	class := s.class[record]
	if s.hands[class] == record {
		s.hands[class] = s.links[record].toBack
	}
	s.links.unlink(&s.lists[class], record)
	s.inClass[class]--
	s.n--
}

// Victim implements Policy.
func (s *SIEVE) Victim(inUse func(uint32) bool) (uint32, bool) { return s.VictimOf(allClasses, inUse) }

// VictimOf implements Policy.
func (s *SIEVE) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	for {
		best := nobody
		for left := classes; left != 0; left &= left - 1 {
			at := s.at(uint8(bits.TrailingZeros64(left)))
			if at != nobody && (best == nobody || s.inserted[at] < s.inserted[best]) {
				best = at
			}
		}
		if best == nobody {
			return 0, false
		}
		class := s.class[best]
		if r, ok := s.sweep(class, inUse); ok {
			return r, true
		}
		classes &^= 1 << class
	}
}

// sweep moves the hand of a class that is not empty to its victim. It passes
// over chunks in use and leaves their bits alone.
func (s *SIEVE) sweep(class uint8, inUse func(uint32) bool) (uint32, bool) {
	r := s.at(class)
	// The first lap may find every bit set, the second finds none.
	for range 2 * s.inClass[class] {
		if !inUse(r) {
			if !s.visited[r] {
				s.hands[class] = r
				s.Remove(r) // moves the hand on
				return r, true
			}
			s.visited[r] = false
		}
		if r = s.links[r].toBack; r == nobody {
			r = s.lists[class].front
		}
	}
	return 0, false
}

// at is where the class's hand stands, nobody if the class is empty.
func (s *SIEVE) at(class uint8) uint32 {
	if s.hands[class] != nobody {
		return s.hands[class]
	}
	return s.lists[class].front
}
