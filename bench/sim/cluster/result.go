package cluster

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// Fate is how a request ended.
type Fate uint8

// Fates.
const (
	Served Fate = iota
	// RefusedFirst at arrival, for the first token would be late.
	RefusedFirst
	// RefusedDecode at arrival, for the decode side is busy.
	RefusedDecode
	// RefusedLate when its prefill was done, for nothing.
	RefusedLate
)

// Outcome is what became of a request.
type Outcome struct {
	Fate        Fate
	InputTokens int
	// OutputTokens, with the first.
	OutputTokens int
	// Blocks of the prompt, HitBlocks of them not computed.
	Blocks, HitBlocks int
	Transferred       bool
	// Arrival, and TTFT from then to the first token, of which were waited and
	// computed.
	Arrival, TTFT time.Duration
	Queue, GPU    time.Duration
	// Transfer is until fetched blocks were there.
	Transfer time.Duration
	// Handover is the wait for the prompt's KV cache to reach the decode node.
	Handover time.Duration
	// TBT is the mean of the longest tenth of the times between tokens, and
	// MeanTBT of all.
	TBT, MeanTBT time.Duration
	// Finished is when the last token came.
	Finished time.Duration
}

// Sample is the load at a moment.
type Sample struct {
	// BusyPrefill is the share of prefill nodes that compute.
	BusyPrefill float64
	// DecodeLoad is the mean time of an iteration over the decode nodes.
	DecodeLoad float64
}

// Result is a run.
type Result struct {
	Outcomes []Outcome
	Samples  []Sample
	// Transfers between prefill nodes for requests, and Replicas ahead of need.
	Transfers, Replicas int
	// TransferBytes of both, HandoverBytes to decode nodes.
	TransferBytes, HandoverBytes int64
	// SavedHandoverBytes were on the decode node already.
	SavedHandoverBytes int64
	// Events that the run took.
	Events int
	// Ended is when the last event was.
	Ended time.Duration
}

func fateOf(r scheduler.Reason) Fate {
	if r == scheduler.LateFirstToken {
		return RefusedFirst
	}
	return RefusedDecode
}
