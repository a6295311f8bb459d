package evict

// LRU evicts the chunk whose last use is longest ago. 17 bytes a record.
type LRU struct {
	links links
	lists perClass
	class []uint8
	// stamp is when a record came to the back of its list, in uses.
	stamp []uint64
	now   uint64
	n     int
}

var _ Policy = (*LRU)(nil)

// NewLRU returns a policy for the records [0, records).
func NewLRU(records int) *LRU {
	return &LRU{links: newLinks(records), lists: emptyLists(), class: make([]uint8, records), stamp: make([]uint64, records)}
}

// Name implements Policy.
func (l *LRU) Name() string { return NameLRU }

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
	l.links.unlink(&l.lists[l.class[record]], record)
	l.push(record)
}

func (l *LRU) push(record uint32) {
	l.now++
	l.stamp[record] = l.now
	l.links.pushBack(&l.lists[l.class[record]], record)
}

// Remove implements Policy.
func (l *LRU) Remove(record uint32) {
	l.links.unlink(&l.lists[l.class[record]], record)
	l.n--
}

// Victim implements Policy.
func (l *LRU) Victim(inUse func(uint32) bool) (uint32, bool) { return l.VictimOf(allClasses, inUse) }

// VictimOf implements Policy.
func (l *LRU) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	return l.take(l.links.oldest(&l.lists, classes, l.stamp, inUse))
}

func (l *LRU) take(record uint32) (uint32, bool) {
	if record == nobody {
		return 0, false
	}
	l.Remove(record)
	return record, true
}
