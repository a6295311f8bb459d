package embedded

import "sync/atomic"

// faces is what lookups must know of records besides what stands in the segment,
// in four bits each, so that a lookup that takes no lock reads it in memory that
// is warm.
type faces []atomic.Uint32

// face is one of a record's bits.
type face uint32

const (
	// faceMissOnce: a load of the chunk failed; the next lookup that meets it is
	// told that it is absent.
	faceMissOnce face = 1 << iota
	// faceHidden: no lookup finds it, whole as it may be.
	faceHidden
	// faceComing: a tier brings it.
	faceComing
	faceBits = 4
)

const facesPerWord = 32 / faceBits

func newFaces(records int) faces {
	return make(faces, (records+facesPerWord-1)/facesPerWord)
}

func (f faces) at(record uint32) (*atomic.Uint32, uint32) {
	return &f[record/facesPerWord], record % facesPerWord * faceBits
}

func (f faces) has(record uint32, which face) bool {
	word, shift := f.at(record)
	return word.Load()>>shift&uint32(which) != 0
}

// of returns all bits of a record.
func (f faces) of(record uint32) face {
	word, shift := f.at(record)
	return face(word.Load() >> shift & (1<<faceBits - 1))
}

func (f faces) set(record uint32, which face) {
	word, shift := f.at(record)
	word.Or(uint32(which) << shift)
}

// clear takes bits away and tells whether one of them was set: to one caller of
// many.
func (f faces) clear(record uint32, which face) bool {
	word, shift := f.at(record)
	return word.And(^(uint32(which)<<shift))>>shift&uint32(which) != 0
}
