package follow

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Sink takes the stream as it is when it is in order.
type Sink interface {
	// Apply takes a batch's bytes.
	Apply(payload []byte)
	// Clear says that nothing is known any more.
	Clear()
}

// Limits on what waits while a replay is awaited. Beyond them what waits is given up,
// and asked for anew.
const (
	maxHeld      = 1 << 14
	maxHeldBytes = 64 << 20
)

// Follower follows a stream. It is not safe for concurrent use.
type Follower struct {
	sink Sink
	// next is the number that is wanted; 0 with nothing known.
	next uint64
	// since is the first number that is known of, when some is.
	since uint64
	some  bool
	// last is the checksum of the latest message that was applied.
	last uint64
	// asked: a replay is awaited. wanted is what next was when it was asked for, checked
	// whether it has begun with what was applied last, or need not.
	asked, checked bool
	wanted         uint64
	// another: the replay that comes is of another publisher; all is asked for behind it.
	another bool
	// all: everything that there is was asked for. anew: the replay that is awaited has it, and
	// takes the place of what is known, if it goes back further.
	all, anew bool
	// doubted: what is known counts only if the replay that is awaited begins with what was
	// applied last. probing: nothing is known to be missing.
	doubted, probing bool
	// unanswered are the replays in a row that nobody answered, and of those in between that
	// were not for all where something is lost; lost: because of one of them something is not
	// known that an answer may bring.
	unanswered int
	lost       bool
	// live is the latest number that came live, lively whether there was one.
	live   uint64
	lively bool
	// ahead are the checksums of the latest that was replayed and has not come live, the first
	// one that of number aheadFrom.
	ahead     []uint64
	aheadFrom uint64
	// held are live messages that wait.
	held      []kvevents.Message
	heldBytes int
	stats     Stats
}

// Stats counts since the start.
type Stats struct {
	Gaps, Restarts uint64
	// Lost: gaps that could not be filled.
	Lost uint64
	// Again: messages that came live behind their replay.
	Again uint64
}

// State says how much of a stream is known.
type State struct {
	// Known: something is. Since is the number of the first message that is: with vLLM 0
	// means all.
	Known bool
	Since uint64
	// Next is the number that is wanted next, and CatchingUp that a replay is awaited that
	// may change what is known. Lost: what was told before Since, or some of it, could not be
	// had, and is asked for again.
	Next       uint64
	CatchingUp bool
	Lost       bool
}

// Mark is where a stream has got to: enough to go on with it later.
type Mark struct {
	// Since and Next as in State; Last is the checksum of the message before Next.
	Since, Next, Last uint64
	// Lost as in State.
	Lost bool `json:",omitempty"`
}

// New makes a follower. The first thing to do is to ask for all, see Start.
func New(sink Sink) *Follower { return &Follower{sink: sink} }

// State returns how much is known.
func (f *Follower) State() State {
	return State{Known: f.some, Since: f.since, Next: f.next, CatchingUp: f.asked && !f.probing, Lost: f.missing()}
}

// missing tells whether the publisher may have something of old that is not known.
func (f *Follower) missing() bool { return f.lost && (!f.some || f.since > 0) }

// Mark returns where the stream has got to, false when nothing of it is known, or not for
// certain.
func (f *Follower) Mark() (Mark, bool) {
	return Mark{Since: f.since, Next: f.next, Last: f.last, Lost: f.missing()}, f.some && !f.doubted && !f.another
}

// Resume begins where a mark says, in place of Start: the sink has what was known there.
//
// REQUIRES: nothing was done before.
func (f *Follower) Resume(m Mark) Ask {
	f.some, f.since, f.next, f.last, f.lost = true, m.Since, m.Next, m.Last, m.Lost
	return f.Doubt()
}

// Stats returns the counters.
func (f *Follower) Stats() Stats { return f.stats }

// Ask is a replay to ask for, when Wanted.
type Ask struct {
	Wanted bool
	From   uint64
	// Later, when not 0, is after what time Retry is to be called.
	Later time.Duration
}

// The times between replays that nobody answers.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// Start begins with nothing known.
//
// REQUIRES: it is called at the start, and, where nobody can be asked for a replay, whenever
// the connection was lost, see Doubt.
func (f *Follower) Start() Ask {
	f.forget()
	f.lively, f.unanswered = false, 0
	f.held, f.heldBytes = nil, 0
	return f.ask()
}

// Doubt asks whether the publisher is still the one that was followed. What is known stays
// until that is answered, and is forgotten when it is not.
//
// REQUIRES: it is called whenever the connection was lost: a publisher that was started
// anew and whose numbers happen to go on where the other's ended is told by nothing else.
func (f *Follower) Doubt() Ask {
	if !f.some {
		return f.Start()
	}
	f.lively, f.unanswered = false, 0
	f.held, f.heldBytes = nil, 0
	ask := f.ask()
	f.doubted = true
	return ask
}

// Probe asks for what was applied last: where nothing comes, the answer says that the
// publisher is there, that it is the same, and what was told last and not heard.
func (f *Follower) Probe() Ask {
	if f.asked {
		return Ask{}
	}
	ask := f.ask()
	f.probing = f.some
	return ask
}

// ask asks for what is missing, and for the message before it: it shows whether the
// publisher is still the same.
func (f *Follower) ask() Ask {
	f.asked, f.wanted, f.checked, f.another, f.anew = true, f.next, !f.some, false, false
	f.doubted, f.probing, f.all = false, false, !f.some
	if !f.some {
		return Ask{Wanted: true}
	}
	return Ask{Wanted: true, From: f.next - 1}
}

// Retry asks once more, after a replay that nobody answered. Where something was lost by that
// it asks for all, and what is known stays until an answer comes that goes back further; else
// for what was applied last: the publisher may have no more of the rest.
func (f *Follower) Retry() Ask {
	if f.asked || f.unanswered == 0 && !f.missing() {
		return Ask{}
	}
	if f.some && !f.missing() {
		return f.Probe()
	}
	f.asked, f.wanted, f.checked, f.another, f.anew = true, 0, true, false, true
	f.doubted, f.probing, f.all = false, false, true
	return Ask{Wanted: true}
}

// Cleared says that nothing which was told before the message that is being applied counts
// any more.
//
// REQUIRES: it is called by the sink's Apply.
func (f *Follower) Cleared() { f.lost = false }

// later says when what was lost is asked for again, unless something is asked for now. Gaps
// that are filled meanwhile bring nothing of it, and make it no sooner.
func (f *Follower) later(ask Ask) Ask {
	if ask.Wanted || f.unanswered == 0 && !f.missing() {
		return ask
	}
	return Ask{Later: min(firstRetry<<min(max(f.unanswered-1, 0), 16), lastRetry)}
}

// forget says that nothing is known.
func (f *Follower) forget() {
	f.sink.Clear()
	f.next, f.since, f.some = 0, 0, false
	f.checked, f.doubted = true, false
	f.ahead = f.ahead[:0]
}

// Live takes a message that came live. What it keeps of it is its own.
func (f *Follower) Live(m kvevents.Message) Ask {
	if f.lively && m.Seq <= f.live {
		return f.restart(m)
	}
	f.live, f.lively = m.Seq, true
	switch {
	case f.asked:
		return f.hold(m)
	case f.some && m.Seq < f.next:
		return f.again(m)
	case f.some && m.Seq == f.next || !f.some && m.Seq == 0:
		f.apply(m)
		return Ask{}
	}
	f.stats.Gaps++
	f.hold(m)
	return f.ask()
}

// restart forgets what another publisher has told.
func (f *Follower) restart(m kvevents.Message) Ask {
	f.stats.Restarts++
	ask := f.Start()
	f.live, f.lively = m.Seq, true
	f.hold(m)
	return ask
}

// again compares a message with its replay.
func (f *Follower) again(m kvevents.Message) Ask {
	if !f.known(m) {
		return f.restart(m)
	}
	f.stats.Again++
	return Ask{}
}

// known tells whether a message was replayed before it came.
func (f *Follower) known(m kvevents.Message) bool {
	i := m.Seq - f.aheadFrom
	return m.Seq >= f.aheadFrom && i < uint64(len(f.ahead)) && f.ahead[i] == xxh3.Hash(m.Payload)
}

func (f *Follower) hold(m kvevents.Message) Ask {
	if len(f.held) >= maxHeld || f.heldBytes+len(m.Payload) > maxHeldBytes {
		f.held, f.heldBytes = nil, 0 // it shows as a gap when the replay has ended
	}
	m.Topic, m.Payload = "", slices.Clone(m.Payload)
	f.held = append(f.held, m)
	f.heldBytes += len(m.Payload)
	return Ask{}
}

func (f *Follower) apply(m kvevents.Message) {
	if !f.some {
		f.some, f.since = true, m.Seq
	}
	f.next, f.last = m.Seq+1, xxh3.Hash(m.Payload)
	f.sink.Apply(m.Payload)
}

// Replayed takes a message of the replay that was asked for, and its end.
func (f *Follower) Replayed(m kvevents.Message) Ask {
	switch {
	case !f.asked:
		return Ask{} // of a replay that was given up
	case m.End:
		if f.lost = f.lost && !f.all; !f.missing() {
			f.unanswered = 0
		}
		if f.some && !f.checked && !f.another {
			// It has nothing of what it is thought to have told.
			f.stats.Restarts++
			held := f.held
			ask := f.Start()
			f.keep(held)
			return ask
		}
		return f.later(f.ended(true))
	case f.another:
		return Ask{}
	}
	if f.anew {
		if f.anew = false; !f.some || m.Seq < f.since {
			f.forget()
		} else { // it goes back no further than what is known
			f.checked = false
		}
	}
	switch {
	case f.some && m.Seq < f.next:
		f.check(m)
		return Ask{}
	case f.some && (m.Seq > f.next || !f.checked):
		f.stats.Lost++
		f.forget()
	}
	if len(f.ahead) == 0 || m.Seq != f.aheadFrom+uint64(len(f.ahead)) {
		f.ahead, f.aheadFrom = f.ahead[:0], m.Seq
	}
	if len(f.ahead) == 2*maxHeld { // no more live messages than maxHeld wait behind it
		f.ahead = f.ahead[:copy(f.ahead, f.ahead[maxHeld:])]
		f.aheadFrom += maxHeld
	}
	f.ahead = append(f.ahead, xxh3.Hash(m.Payload))
	f.apply(m)
	return Ask{}
}

// check compares the last message that was applied with its replay.
func (f *Follower) check(m kvevents.Message) {
	if f.checked || m.Seq != f.next-1 {
		return
	}
	f.checked = true
	f.doubted = false
	if xxh3.Hash(m.Payload) != f.last {
		f.stats.Restarts++
		f.forget()
		f.another = true
	}
}

// Unanswered gives up the replay that was asked for: nobody has answered in time, or
// there is nobody to ask. The stream goes on with what it has; what is missing is asked
// for later, and later each time.
func (f *Follower) Unanswered() Ask {
	if !f.asked {
		return Ask{}
	}
	f.unanswered++
	if f.doubted {
		f.forget()
	}
	f.lost = f.lost || !f.some
	return f.later(f.ended(false))
}

// ended goes on with what has waited, behind a replay that was answered to its end or was not.
func (f *Follower) ended(answered bool) Ask {
	if f.another {
		return f.ask()
	}
	f.asked = false
	held := f.held
	f.held, f.heldBytes = nil, 0
	for i, m := range held {
		switch {
		case f.some && m.Seq < f.next:
			if !f.known(m) {
				// One of the two is another publisher's. The replay came later, or comes
				// again: the message is left out, or this would have no end.
				f.stats.Restarts++
				ask := f.Start()
				f.keep(held[i+1:])
				return ask
			}
			f.stats.Again++
			continue
		case f.some && m.Seq > f.next && f.next > f.wanted:
			// The replay has brought something, so there may be more.
			f.stats.Gaps++
			f.keep(held[i:])
			return f.ask()
		case f.some && m.Seq > f.next:
			f.stats.Lost++
			f.lost = !answered
			f.forget()
		}
		f.apply(m)
	}
	return Ask{}
}

// keep lets messages wait for one more replay.
func (f *Follower) keep(held []kvevents.Message) {
	for _, m := range held {
		f.live, f.lively = m.Seq, true
		f.hold(m)
	}
}
