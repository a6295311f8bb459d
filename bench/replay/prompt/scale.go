package prompt

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// maxScaled bounds a scaled block.
const maxScaled = 1 << 16

// ErrScale: a scale that can't be replayed.
var ErrScale = errors.New("wrong scale")

// Scale is how many tokens stand for a trace's block.
type Scale struct {
	// BlockTokens of a scaled block.
	BlockTokens int
}

// ParseScale reads a factor, "0.25" or "1/4".
func ParseScale(text string) (Scale, error) {
	above, below, fraction := strings.Cut(text, "/")
	if !fraction {
		below = "1"
	}
	a, err := strconv.ParseFloat(above, 64)
	b, err2 := strconv.ParseFloat(below, 64)
	if err := errors.Join(err, err2); err != nil {
		return Scale{}, fmt.Errorf("%w %q: want a factor such as 1, 0.25 or 1/4", ErrScale, text)
	}
	tokens := trace.BlockTokens * a / b
	if !(tokens >= 1 && tokens <= maxScaled) {
		return Scale{}, fmt.Errorf("%w %q: a block of %g tokens; want 1 to %d", ErrScale, text, tokens, maxScaled)
	}
	if tokens != math.Trunc(tokens) {
		return Scale{}, fmt.Errorf("%w %q: a block of %g tokens is no whole number", ErrScale, text, tokens)
	}
	return Scale{BlockTokens: int(tokens)}, nil
}

// Check tells whether the scale suits an engine whose blocks have so many tokens.
func (s Scale) Check(engineBlock int) error {
	if engineBlock < 1 {
		return fmt.Errorf("%w: an engine's block of %d tokens", ErrScale, engineBlock)
	}
	if s.BlockTokens%engineBlock == 0 {
		return nil
	}
	near := (s.BlockTokens + engineBlock - 1) / engineBlock * engineBlock
	return fmt.Errorf("%w: a scaled block of %d tokens is no multiple of the engine's block of %d; with %d/%d it is", ErrScale, s.BlockTokens, engineBlock, near, trace.BlockTokens)
}

// Tokens is the length of a request's prompt.
func (s Scale) Tokens(r *trace.Request) int {
	full, rest := r.InputTokens/trace.BlockTokens, r.InputTokens%trace.BlockTokens
	return int(full)*s.BlockTokens + int(s.up(rest))
}

// Output is the length of an output of that many tokens, scaled by a factor; at
// least 1, which is what an engine generates at least.
func Output(tokens int64, factor float64) int {
	return max(1, int(math.Round(float64(tokens)*factor)))
}

// up scales a part of a block, rounding up.
func (s Scale) up(tokens int64) int64 {
	return (tokens*int64(s.BlockTokens) + trace.BlockTokens - 1) / trace.BlockTokens
}
