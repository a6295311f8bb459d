package scheduler

import "time"

// Request is what is to be placed.
type Request struct {
	Tokens int
	// Blocks of BlockTokens each, the last perhaps shorter.
	Blocks, BlockTokens int
	// TTFT and TBT are the objectives for the first token and the time between
	// tokens. 0: none.
	TTFT, TBT time.Duration
}

// cached is the tokens that so many leading blocks save; the last token of a
// prompt is always computed.
func (r *Request) cached(blocks int) int { return max(min(blocks*r.BlockTokens, r.Tokens-1), 0) }

// Prefiller is what is known of a prefill instance. A moment that has passed, a
// negative duration, is now.
type Prefiller struct {
	// LocalBlocks are the leading blocks of the request that are there when it
	// would run: present, or computed by what is queued before it.
	LocalBlocks int
	// ReadyBlocks are the leading blocks that can be read now.
	ReadyBlocks int
	// Queue is until the instance has done what it was given.
	Queue time.Duration
	// Outstanding prompts were assigned and have no first token yet.
	Outstanding int
	// Egress and Ingress are until the link out of the instance, and into it, is free.
	Egress, Ingress time.Duration
	// Slowness is how many times as long as Costs say a prefill takes there; 0 is once.
	Slowness float64
}

// Decoder is what is known of a decode instance.
type Decoder struct {
	// Sequences that decode or wait to, and their tokens of context.
	Sequences     int
	ContextTokens int64
	// CachedBlocks are the leading blocks of the request that it still holds.
	CachedBlocks int
	// Slowness is how many times as long as Costs say an iteration takes there; 0 is once.
	Slowness float64
}

// slowed is a duration at an instance of some slowness.
func slowed(d time.Duration, slowness float64) time.Duration {
	if slowness == 0 {
		return d
	}
	return time.Duration(float64(d) * slowness)
}

// queue, egress and ingress are the waits that there are.
func (p *Prefiller) queue() time.Duration   { return max(p.Queue, 0) }
func (p *Prefiller) egress() time.Duration  { return max(p.Egress, 0) }
func (p *Prefiller) ingress() time.Duration { return max(p.Ingress, 0) }

// Facts is the cluster as a request finds it.
type Facts struct {
	Prefill []Prefiller
	Decode  []Decoder
	// Forecast may be nil if the admission does not predict.
	Forecast Forecast
}

// Forecast answers what is known of a later moment.
type Forecast interface {
	// Staying is how many of the sequences that decode now will be younger than age
	// at a moment.
	Staying(in, age time.Duration) int
	// Arriving is how many prompts get their first token before that moment.
	Arriving(in time.Duration) int
}

// Costs estimate durations. Prefill is until the first token, Work the time for
// which the instance is taken.
type Costs interface {
	Prefill(tokens, cachedTokens int) time.Duration
	Work(tokens, cachedTokens int) time.Duration
	Transfer(tokens int) time.Duration
	Iteration(sequences int, contextTokens int64) time.Duration
}

// Nobody is no instance.
const Nobody = -1

// Term is what a prefill instance would cost the request.
type Term struct {
	// CachedBlocks are not computed there; Source has those that are fetched, or is
	// Nobody.
	CachedBlocks, Source int
	// Transfer, Queue and Prefill add up to TTFT.
	Transfer, Queue, Prefill, TTFT time.Duration
	// Work is the instance's time that the prompt takes.
	Work time.Duration
	// Objective is what the least of was looked for.
	Objective time.Duration
}

// Reason is why a request is refused; it goes with HTTP's 429.
type Reason uint8

// Reasons.
const (
	Accepted Reason = iota
	// LateFirstToken: no instance would make the first token in time.
	LateFirstToken
	// DecodeBusy: the tokens would come too slowly.
	DecodeBusy
	// NoPrefiller: there is no prefill instance.
	NoPrefiller
)

// String is the reason as metrics and answers name it.
func (r Reason) String() string {
	switch r {
	case Accepted:
		return "accepted"
	case LateFirstToken:
		return "late-first-token"
	case DecodeBusy:
		return "decode-busy"
	case NoPrefiller:
		return "no-prefiller"
	}
	return "unknown"
}

// Decision is what to do with a request.
type Decision struct {
	Refused Reason
	// Prefill and Decode are indices in Facts. Decode is Nobody if it is chosen
	// later, or there is none; Prefill is under NoPrefiller.
	Prefill, Decode int
	// Term is the chosen prefill instance's.
	Term Term
	// TBT is the expected time between tokens.
	TBT time.Duration
	// Terms are those of all candidates; they are valid until the next decision.
	Terms []Term
}
