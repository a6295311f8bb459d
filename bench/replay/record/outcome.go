package record

import (
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
)

// Never is the time of what did not happen.
const Never = time.Duration(-1)

// Outcome is what came of one request. Times count from the replay's begin.
type Outcome struct {
	// Line of the trace.
	Line int
	// PromptTokens and WantTokens were asked for, OutputTokens came.
	PromptTokens, WantTokens, OutputTokens int
	// CachedTokens of the prompt, client.Unknown if the server does not say. Must and
	// May are the least and the most that a cache which never evicts has; InOrder is
	// what the trace says, one request at a time.
	CachedTokens, Must, May, InOrder int
	// Due is when the request had to be sent, Sent when it was. First and End are of
	// its first and last token; First is Never if none came.
	Due, Sent, First, End time.Duration
	// TailGap is the mean of the longest tenth of the gaps between tokens, which is
	// the papers' TBT of a request, MaxGap the longest; 0 of fewer than two tokens.
	TailGap, MaxGap time.Duration
	// Err is nil for a request that was answered in full.
	Err error
}

// TTFT is the time to the first token, Never without one.
func (o *Outcome) TTFT() time.Duration {
	if o.First == Never {
		return Never
	}
	return o.First - o.Due
}

// Cache says how a request's cached tokens compare with what they must be.
type Cache string

// Comparisons.
const (
	// AsExpected: not fewer than must be and not more than may be.
	AsExpected Cache = "as expected"
	// TooFew: something that must be cached was not, for it was evicted or late.
	TooFew Cache = "too few"
	// TooMany: something was cached that the trace does not account for, from before
	// the replay or from others.
	TooMany Cache = "too many"
	// Untold: the server does not say.
	Untold Cache = "untold"
)

// Cache compares.
func (o *Outcome) Cache() Cache {
	switch {
	case o.CachedTokens == client.Unknown:
		return Untold
	case o.CachedTokens < o.Must:
		return TooFew
	case o.CachedTokens > o.May:
		return TooMany
	}
	return AsExpected
}

// Gaps collects the gaps between one request's tokens.
type Gaps struct {
	last time.Duration
	some bool
	gaps []time.Duration
}

// Add counts n tokens that came at once: one gap to those before, none between
// them.
func (g *Gaps) Add(at time.Duration, n int) {
	if g.some {
		g.gaps = append(g.gaps, at-g.last)
	}
	for range n - 1 {
		g.gaps = append(g.gaps, 0)
	}
	g.last, g.some = at, true
}

// Tail is the mean of the longest tenth, at least one, and the longest gap. It
// sorts the gaps.
func (g *Gaps) Tail() (mean, longest time.Duration) {
	if len(g.gaps) == 0 {
		return 0, 0
	}
	slices.Sort(g.gaps)
	tail := g.gaps[len(g.gaps)-(len(g.gaps)+9)/10:]
	sum := time.Duration(0)
	for _, gap := range tail {
		sum += gap
	}
	return sum / time.Duration(len(tail)), tail[len(tail)-1]
}
