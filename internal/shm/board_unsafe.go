package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// JobBoard is a shared array of 64-bit words that one side writes and the other
// reads. A word is read and written whole, in the machine's byte order: both
// sides are on one machine.
//
// The words are views of the mapping: mmap gives page-aligned memory, so that
// each is aligned, and none may be used after Close.
type JobBoard struct {
	mapping *Mapping
	words   []atomic.Uint64
}

// MapJobBoard maps a board of exactly slots words. The descriptor stays the
// caller's.
func MapJobBoard(fd, slots int) (*JobBoard, error) {
	if slots < 1 {
		return nil, fmt.Errorf("job board: %w: %d words", ErrWrongSize, slots)
	}
	m, err := Map(fd, uint64(slots)*8)
	if err != nil {
		return nil, fmt.Errorf("job board: %w", err)
	}
	words := unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(m.Data()))), slots)
	return &JobBoard{mapping: m, words: words}, nil
}

// Slots returns the number of words.
func (b *JobBoard) Slots() int { return len(b.words) }

// Word reads word i.
//
// REQUIRES: 0 <= i < Slots, and the board is not closed.
func (b *JobBoard) Word(i int) uint64 { return b.words[i].Load() }

// SetWord writes word i, under the same conditions.
func (b *JobBoard) SetWord(i int, word uint64) { b.words[i].Store(word) }

// Close unmaps the board.
//
// REQUIRES: nobody reads it any more.
func (b *JobBoard) Close() error {
	b.words = nil
	return b.mapping.Close()
}
