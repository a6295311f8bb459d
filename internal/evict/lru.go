package evict

// LRU evicts the chunk whose last use is longest ago. 17 bytes a record.
type LRU struct {
	lists lists
	class []uint8
	// used is the time of a record's last use, in uses.
	used []uint64
	now  uint64
	n    int
}

var _ Policy = (*LRU)(nil)

// NewLRU returns a policy for the records [0, records).
func NewLRU(records int) *LRU {
	return &LRU{lists: newLists(records), class: make([]uint8, records), used: make([]uint64, records)}
}

// Name implements Policy.
func (l *LRU) Name() string { return "lru" }

// Len implements Policy.
func (l *LRU) Len() int { return l.n }

// Insert implements Policy.
func (l *LRU) Insert(record uint32, chunk Chunk) {
	l.class[record] = chunk.Class
	l.push(record)
	l.n++
}

// Touch implements Policy.
func (l *LRU) Touch(record uint32) {
	l.lists.unlink(l.class[record], record)
	l.push(record)
}

func (l *LRU) push(record uint32) {
	l.now++
	l.used[record] = l.now
	l.lists.pushBack(l.class[record], record)
}

// Remove implements Policy.
func (l *LRU) Remove(record uint32) {
	l.lists.unlink(l.class[record], record)
	l.n--
}

// Victim implements Policy.
func (l *LRU) Victim(inUse func(uint32) bool) (uint32, bool) {
	return l.VictimOf(^uint64(0), inUse)
}

// VictimOf implements Policy.
func (l *LRU) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	return l.take(l.lists.first(classes, l.used, inUse))
}

func (l *LRU) take(record uint32) (uint32, bool) {
	if record == nobody {
		return 0, false
	}
	l.Remove(record)
	return record, true
}
