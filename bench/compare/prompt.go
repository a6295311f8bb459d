package compare

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// Of the generated checkpoints; the first two tokens are special.
const vocabulary, firstToken = 4096, 2

// generator draws from a stream of its own for each use, so that what one system or
// part draws moves nothing elsewhere, and an interrupted run goes on as it would have.
func generator(seed uint64, use string, numbers ...int) *rand.Rand {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(use)) // never fails
	state := hash.Sum64()
	for _, n := range numbers {
		state = state*0x9e3779b97f4a7c15 + uint64(n) + 1
	}
	return rand.New(rand.NewPCG(seed, state))
}

// randomPrompt is a prompt that shares no prefix with another.
func randomPrompt(rng *rand.Rand, tokens int) []int {
	prompt := make([]int, tokens)
	for i := range prompt {
		prompt[i] = firstToken + rng.IntN(vocabulary-firstToken)
	}
	return prompt
}

// arrivals are offsets of an open-loop arrival process with exponential gaps, the
// same for all systems. The first is at once.
func arrivals(rng *rand.Rand, n int, meanGap time.Duration) []time.Duration {
	offsets := make([]time.Duration, n)
	for i := 1; i < n; i++ {
		offsets[i] = offsets[i-1] + time.Duration(rng.ExpFloat64()*float64(meanGap))
	}
	return offsets
}
