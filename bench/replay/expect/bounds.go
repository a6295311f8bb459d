package expect

import (
	"cmp"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// Never is the time of what did not happen.
const Never = time.Duration(-1)

// Sent is a request that was sent, and when; times count from one moment.
type Sent struct {
	Request *trace.Request
	// Tokens of the prompt as it was sent.
	Tokens int
	At     time.Duration
	// First token, Never if none came.
	First time.Duration
}

// Bounds of a request's cached tokens.
type Bounds struct {
	Must, May int
}

// event happens to a request.
type event struct {
	at      time.Duration
	kind    eventKind
	request int
}

// eventKind orders what happens at one moment: what may have been before counts
// for may, and not for must.
type eventKind int

const (
	ask eventKind = iota // must is asked for, then the request is sent
	know
)

// Compute gives the bounds of each request, in the order of sent.
func Compute(engineBlock, scaledBlock int, sent []Sent) []Bounds {
	events := make([]event, 0, 2*len(sent))
	for i := range sent {
		events = append(events, event{sent[i].At, ask, i})
		if sent[i].First != Never {
			events = append(events, event{sent[i].First, know, i})
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.request, b.request))
	})
	known, asked := NewTree(engineBlock, scaledBlock), NewTree(engineBlock, scaledBlock)
	bounds := make([]Bounds, len(sent))
	for _, e := range events {
		s := &sent[e.request]
		if e.kind == ask {
			bounds[e.request].Must = known.Cached(e.request, s.Request, s.Tokens)
			asked.Add(e.request, s.Request, s.Tokens)
			continue
		}
		bounds[e.request].May = asked.Cached(e.request, s.Request, s.Tokens)
		known.Add(e.request, s.Request, s.Tokens)
	}
	for i := range sent {
		if sent[i].First == Never {
			bounds[i].May = bounds[i].Must // no answer, none to compare
		}
	}
	return bounds
}

// InOrder gives what each request must find if they come one at a time.
func InOrder(engineBlock, scaledBlock int, requests []trace.Numbered, tokens func(*trace.Request) int) []int {
	t := NewTree(engineBlock, scaledBlock)
	cached := make([]int, len(requests))
	for i := range requests {
		r := &requests[i].Request
		cached[i] = t.Cached(i, r, tokens(r))
		t.Add(i, r, tokens(r))
	}
	return cached
}
