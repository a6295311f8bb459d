package prompt

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// minBits is the least that tells two ids' first blocks apart: with 2^20 ids two
// are alike with a chance of less than 2^-56.
const minBits = 96

// ErrVocabulary: too few tokens to tell blocks apart.
var ErrVocabulary = errors.New("too few tokens")

// Maker makes prompts. It is safe for use by many goroutines.
type Maker struct {
	scale  Scale
	seed   uint64
	first  uint32
	choice uint32
}

// NewMaker draws tokens from [first, vocabulary) for an engine with blocks of
// engineBlock tokens, by seed.
func NewMaker(scale Scale, engineBlock, first, vocabulary int, seed uint64) (*Maker, error) {
	if err := scale.Check(engineBlock); err != nil {
		return nil, err
	}
	if first < 0 || vocabulary > math.MaxInt32 || vocabulary-first < 2 {
		return nil, fmt.Errorf("%w: from %d to %d", ErrVocabulary, first, vocabulary)
	}
	if bits := math.Log2(float64(vocabulary-first)) * float64(engineBlock); bits < minBits {
		return nil, fmt.Errorf("%w: blocks of %d tokens out of %d say %.0f bits, %d are needed to tell blocks apart", ErrVocabulary, engineBlock, vocabulary-first, bits, minBits)
	}
	return &Maker{scale: scale, seed: seed, first: uint32(first), choice: uint32(vocabulary - first)}, nil
}

// Append appends the prompt of a request to dst.
func (m *Maker) Append(dst []uint32, r *trace.Request) []uint32 {
	left := m.scale.Tokens(r)
	for _, id := range r.HashIDs {
		// A generator for each id: a block depends on nothing before it.
		rng := rand.NewPCG(m.seed, uint64(id))
		n := min(left, m.scale.BlockTokens)
		for range n {
			dst = append(dst, m.first+bounded(rng.Uint64(), m.choice))
		}
		left -= n
	}
	return dst
}

// bounded maps a random word to [0, n), all but evenly.
func bounded(word uint64, n uint32) uint32 {
	return uint32((word >> 32) * uint64(n) >> 32)
}
