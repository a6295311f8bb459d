package node

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/event"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
)

// Sequence is a request while it is decoded.
type Sequence struct {
	// ContextTokens is the prompt with what was generated so far.
	ContextTokens int
	// LeftTokens are still to come.
	LeftTokens int
	// Joined is when it came to the node, with its first token.
	Joined time.Duration
	// Done is called when the last token has come, with the times between its
	// tokens, which are valid during the call.
	Done func(gaps []time.Duration)

	started int // iterations of the node before its first
}

// Batch decodes: all sequences go forward one token an iteration, who comes waits
// for the next iteration, and for memory.
type Batch struct {
	queue    *event.Queue
	costs    *model.Costs
	kvTokens int64
	running  []*Sequence
	waiting  []*Sequence
	context  int64 // of the running ones
	planned  int64 // of the running ones when they will end
	waitedBy int64 // context of the waiting ones
	ticking  bool
	// ends are when the iterations ended that some running sequence was part of.
	ends []time.Duration
	base int // iterations before ends[0]
	gaps []time.Duration
}

// NewBatch returns an idle node with memory for so many tokens of context.
func NewBatch(queue *event.Queue, costs *model.Costs, kvTokens int64) *Batch {
	return &Batch{queue: queue, costs: costs, kvTokens: kvTokens}
}

// Load is what the node works on, with what waits: sequences and context tokens.
func (b *Batch) Load() (sequences int, contextTokens int64) {
	return len(b.running) + len(b.waiting), b.context + b.waitedBy
}

// Younger counts the sequences that joined at a time or later.
func (b *Batch) Younger(since time.Duration) (sequences int) {
	for _, list := range [][]*Sequence{b.running, b.waiting} {
		for _, s := range list {
			if s.Joined >= since {
				sequences++
			}
		}
	}
	return sequences
}

// Join takes a sequence whose first token is there. One that has none left is
// done at once.
func (b *Batch) Join(s *Sequence) {
	s.Joined = b.queue.Now()
	if s.LeftTokens <= 0 {
		s.Done(nil)
		return
	}
	b.waiting = append(b.waiting, s)
	b.waitedBy += int64(s.ContextTokens)
	if !b.ticking {
		b.begin()
	}
}

// begin starts an iteration, if there is anything to do.
func (b *Batch) begin() {
	for len(b.waiting) > 0 {
		s := b.waiting[0]
		need := int64(s.ContextTokens + s.LeftTokens)
		if len(b.running) > 0 && b.planned+need > b.kvTokens {
			break
		}
		b.waiting = b.waiting[1:]
		b.waitedBy -= int64(s.ContextTokens)
		b.context += int64(s.ContextTokens)
		b.planned += need
		s.started = b.base + len(b.ends)
		b.running = append(b.running, s)
	}
	b.ticking = len(b.running) > 0
	if !b.ticking {
		b.base += len(b.ends)
		b.ends = b.ends[:0]
		return
	}
	took := model.Duration(b.costs.Iteration(len(b.running), b.context))
	b.queue.At(b.queue.Now()+took, b.end)
}

// end finishes an iteration: every running sequence has a token more.
func (b *Batch) end() {
	b.ends = append(b.ends, b.queue.Now())
	b.context += int64(len(b.running))
	keep := b.running[:0]
	oldest := b.base + len(b.ends)
	for _, s := range b.running {
		s.ContextTokens++
		if s.LeftTokens--; s.LeftTokens > 0 {
			keep = append(keep, s)
			oldest = min(oldest, s.started)
			continue
		}
		b.context -= int64(s.ContextTokens)
		b.planned -= int64(s.ContextTokens)
		s.Done(b.gapsOf(s))
	}
	clear(b.running[len(keep):])
	b.running = keep
	// What no running sequence was part of is forgotten now and then.
	if drop := oldest - b.base; drop > len(b.ends)/2 && drop > 1024 {
		b.ends = append(b.ends[:0], b.ends[drop:]...)
		b.base += drop
	}
	b.begin()
}

// gapsOf are the times between a sequence's tokens; the first of them includes
// its wait.
func (b *Batch) gapsOf(s *Sequence) []time.Duration {
	b.gaps = b.gaps[:0]
	last := s.Joined
	for _, end := range b.ends[s.started-b.base:] {
		b.gaps = append(b.gaps, end-last)
		last = end
	}
	return b.gaps
}
