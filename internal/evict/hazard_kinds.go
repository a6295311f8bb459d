package evict

// Kinds of chunks, which have hazards of their own.
const (
	// kindTail: never came back, and was the last of its request. In a trace of
	// whole prompts that is the partial block.
	kindTail = 0
	// kindNew and up: never came back, by what it was appended to and by the
	// number of chunks that were new with it.
	kindNew = 1
	// kindReused: came back.
	kindReused = kindNew + origins*lengths
	// learnedKinds are those.
	learnedKinds = kindReused + 1
	// kindUnsorted is where chunks are listed before anything was learned.
	kindUnsorted = learnedKinds
	kinds        = learnedKinds + 1
)

// Origins of new chunks.
const (
	originRoot  = iota // a chain of their own
	originChain        // behind a chunk that was used a few times: a conversation goes on
	originTrunk        // behind one that was used often: a system prompt
	origins
)

// lengths is the number of classes of length of what is new in a run.
const lengths = 5

// trunkUses is the uses above which a chunk is part of a trunk.
const trunkUses = 4

// lengthEdges are the numbers of new chunks up to which a run is in the same
// class of length, as parts of the mean.
var lengthEdges = [lengths - 1]float64{0.13, 0.5, 2, 5}

// kindOfNew returns the kind of a chunk that came with n new ones.
func kindOfNew(origin, n int, mean float64) int {
	length := 0
	for length < len(lengthEdges) && float64(n) > lengthEdges[length]*mean {
		length++
	}
	return kindNew + origin*lengths + length
}

// originBehind returns the origin of what is appended to a chunk.
func originBehind(uses uint8) int {
	if uses > trunkUses {
		return originTrunk
	}
	return originChain
}
