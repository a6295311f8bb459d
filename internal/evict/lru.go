package evict

const nobody = ^uint32(0)

// LRU evicts the chunk whose last use is longest ago. It is an intrusive doubly
// linked list over record numbers: 8 bytes a record, fixed at creation.
type LRU struct {
	// prev leads towards the most recent, next towards the least recent.
	prev, next []uint32
	newest     uint32
	oldest     uint32
	n          int
}

var _ Policy = (*LRU)(nil)

// NewLRU returns a policy for the records [0, records).
func NewLRU(records int) *LRU {
	return &LRU{prev: make([]uint32, records), next: make([]uint32, records), newest: nobody, oldest: nobody}
}

// Name implements Policy.
func (l *LRU) Name() string { return "lru" }

// Len implements Policy.
func (l *LRU) Len() int { return l.n }

// Insert implements Policy.
func (l *LRU) Insert(record uint32, _ Chunk) {
	l.pushNewest(record)
	l.n++
}

// Touch implements Policy.
func (l *LRU) Touch(record uint32) {
	if l.newest == record {
		return
	}
	l.unlink(record)
	l.pushNewest(record)
}

// Remove implements Policy.
func (l *LRU) Remove(record uint32) {
	l.unlink(record)
	l.n--
}

// Victim implements Policy.
func (l *LRU) Victim(inUse func(uint32) bool) (uint32, bool) {
	for r := l.oldest; r != nobody; r = l.prev[r] {
		if !inUse(r) {
			l.Remove(r)
			return r, true
		}
	}
	return 0, false
}

func (l *LRU) pushNewest(record uint32) {
	l.prev[record], l.next[record] = nobody, l.newest
	if l.newest != nobody {
		l.prev[l.newest] = record
	} else {
		l.oldest = record
	}
	l.newest = record
}

func (l *LRU) unlink(record uint32) {
	p, n := l.prev[record], l.next[record]
	if p != nobody {
		l.next[p] = n
	} else {
		l.newest = n
	}
	if n != nobody {
		l.prev[n] = p
	} else {
		l.oldest = p
	}
}
