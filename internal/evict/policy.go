package evict

// Chunk is what a policy may know of a chunk when it is inserted.
type Chunk struct {
	// Key is the chunk's key digest; a policy with a memory of evicted chunks
	// recognises a returning one by it.
	Key uint64
	// Parent is the key digest of the chunk before it in its chain, 0 for none.
	// A chunk whose predecessors have gone can't be hit.
	Parent uint64
	// Depth is the chunk's index in its chain.
	Depth uint32
	// Class is what the caller may later ask a victim of: a size class, say. It
	// plays no part in the order. Below MaxClasses.
	Class uint8
}

// MaxClasses bounds Chunk.Class.
const MaxClasses = 64

// Policy orders the resident chunks for eviction. One policy serves a whole
// store: all of its chunks have one order, whatever their class.
//
// REQUIRES: a record is inserted at most once before it is removed, and only
// resident records are touched or removed.
type Policy interface {
	// Name is the policy's name in configuration and metrics.
	Name() string
	// Insert adds a chunk that has become resident.
	Insert(record uint32, chunk Chunk)
	// Touch notes a use. A request's chunks are touched leaf first, so that the
	// root is the most recent.
	Touch(record uint32)
	// Remove forgets a chunk that left for another reason than being a victim.
	Remove(record uint32)
	// Victim picks the next chunk to go, forgets it and returns it. inUse vetoes
	// chunks that are referenced or leased; they keep their place. False: nothing
	// may go. Work is bounded by the number of vetoed chunks.
	Victim(inUse func(record uint32) bool) (uint32, bool)
	// VictimOf is Victim among the chunks of some classes (bit i for class i), at
	// the same cost: of a slot size, or of an owner that is over its quota.
	VictimOf(classes uint64, inUse func(record uint32) bool) (uint32, bool)
	// Len is the number of resident chunks.
	Len() int
}
