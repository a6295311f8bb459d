package feed

import (
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Summary is what a query wants to know of a feed.
type Summary struct {
	State contract.State
	// Since as in contract.Status.
	Since uint64
	// BlockTokens is the size of the blocks that were told of, 0 for none yet.
	BlockTokens int
}

// statusBox has what others may see.
type statusBox struct {
	mu          sync.Mutex
	status      contract.Status
	blockTokens int
}

// Status returns how the feed does.
func (f *Feed) Status() contract.Status {
	f.status.mu.Lock()
	defer f.status.mu.Unlock()
	s := f.status.status
	s.Warnings = append([]string(nil), s.Warnings...)
	return s
}

// Summary is a part of Status.
func (f *Feed) Summary() Summary {
	f.status.mu.Lock()
	defer f.status.mu.Unlock()
	return Summary{f.status.status.State, f.status.status.Since, f.status.blockTokens}
}

// Mark returns where the stream has got to, false when it is not known for certain.
//
// REQUIRES: the caller has the gate for itself.
func (f *Feed) Mark() (Mark, bool) {
	m, ok := f.stream.follower.Mark()
	if m := f.cfg.Resume; !ok && !f.begun && m != nil {
		return *m, true // it has not been asked yet whether that still is so
	}
	return Mark{Mark: m, Whole: f.stream.whole && !f.stream.announcing, Since: f.stream.since, BlockTokens: f.stream.blockTokens}, ok
}

// store tells whether the service is a store, not an engine.
func (f *Feed) store() bool { return f.cfg.Service.Type == contract.TypeMooncake }

// report says how the feed does.
func (f *Feed) report() {
	s, at, counted := f.stream, f.stream.follower.State(), f.stream.follower.Stats()
	status := contract.Status{
		Service: f.cfg.Service, State: f.state(), Next: at.Next, Heard: f.heard, Batches: s.batches, Gaps: counted.Gaps, Restarts: counted.Restarts,
		Rejected: s.rejected + f.refused, Blocks: s.source.Stats(), Hashing: s.checker.Hashing(),
		Lost: counted.Lost, Replays: f.counts.replays, Unanswered: f.counts.unanswered, Overrun: f.dropped, Live: f.counts.live, Delay: f.counts.delay,
	}
	if status.State == contract.Incomplete {
		status.Since = s.since
	}
	if faults := f.faults(); len(faults) > 0 {
		status.Reason, status.Warnings = faults[0], faults[1:]
	}
	f.status.mu.Lock()
	defer f.status.mu.Unlock()
	if was := f.status.status.State; was != status.State && f.begun {
		f.cfg.Log.Info("KV events: "+status.State.String(), "service", f.cfg.Service.Key().String(), "endpoint", f.cfg.Service.Endpoint, "next", status.Next, "reason", status.Reason)
	}
	f.status.status, f.status.blockTokens = status, s.blockTokens
}

// state says how much is known.
func (f *Feed) state() contract.State {
	s, at := f.stream, f.stream.follower.State()
	switch {
	case f.heard.IsZero():
		return contract.Connecting
	case !f.up, f.mute:
		return contract.Silent
	case at.CatchingUp || s.announcing || !f.begun:
		return contract.Incomplete
	case s.whole, !s.any && f.answered: // it has told nothing
		return contract.Complete
	}
	return contract.Incomplete
}

// faults are what the operator should know, the worst first.
func (f *Feed) faults() (faults []string) {
	silent := f.cfg.Times.Answer.Round(time.Second).String()
	switch {
	case f.unreachable != nil:
		faults = append(faults, "it can't be subscribed to: "+f.unreachable.Error())
	case f.begun && !f.up:
		faults = append(faults, "there is no connection to "+f.cfg.Service.Endpoint)
	case !f.timers.ask.IsZero():
		faults = append(faults, "its numbers begin anew again and again: look whether several publish there")
	case f.unanswered:
		faults = append(faults, "nobody answers at "+f.cfg.Service.ReplayEndpoint+" within "+silent)
	case f.cfg.Service.ReplayEndpoint != "" && f.stream.follower.State().Lost:
		faults = append(faults, "something that it told before was lost, and is asked for again")
	case f.begun && f.cfg.Service.ReplayEndpoint == "" && !f.stream.whole:
		faults = append(faults, "what it told before, or what was lost, is not known: it has no replay_endpoint")
	}
	if f.otherTopic != "" {
		faults = append(faults, "it publishes several topics, such as "+f.otherTopic+": name one")
	}
	faults = append(faults, f.stream.faults()...)
	if f.dropped > 0 {
		faults = append(faults, "messages were dropped here and asked for again: it is faster than this process")
	}
	return faults
}
