package evict

// FIFO evicts the chunk that was inserted first: LRU that does not see uses.
type FIFO struct{ lru LRU }

var _ Policy = (*FIFO)(nil)

// NewFIFO returns a policy for the records [0, records).
func NewFIFO(records int) *FIFO { return &FIFO{*NewLRU(records)} }

// Name implements Policy.
func (f *FIFO) Name() string { return NameFIFO }

// Len implements Policy.
func (f *FIFO) Len() int { return f.lru.Len() }

// Insert implements Policy.
func (f *FIFO) Insert(record uint32, chunk Chunk) { f.lru.Insert(record, chunk) }

// Touch implements Policy.
func (f *FIFO) Touch(uint32) {}

// Remove implements Policy.
func (f *FIFO) Remove(record uint32) { f.lru.Remove(record) }

// Victim implements Policy.
func (f *FIFO) Victim(inUse func(uint32) bool) (uint32, bool) { return f.lru.Victim(inUse) }

// VictimOf implements Policy.
func (f *FIFO) VictimOf(classes uint64, inUse func(uint32) bool) (uint32, bool) {
	return f.lru.VictimOf(classes, inUse)
}
