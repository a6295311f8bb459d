package fleet

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// rank is what one data-parallel rank of an engine has to do. Its fields are guarded by
// its engine's mutex.
type rank struct {
	flights map[*Flight]struct{}

	// prompts are ours that have no first token yet, and work what they will take.
	prompts int
	work    time.Duration
	// sequences are ours that decode, or will, and context their tokens.
	sequences int
	context   int64

	// busy is the period since the rank last had no prompt of ours.
	busy period

	// others are what the last poll said beyond ours: prompts that wait, and sequences
	// that are worked on.
	otherPrompts, otherSequences int
	// usualWork and usualContext are moving means of ours, taken for those of others.
	usualWork    time.Duration
	usualContext float64

	// prefills and steps are by how much the rank is slower than the models.
	prefills, steps factor
	// polled is the last sample. sawPrefill and sawStep: something of ours was observed
	// since, so that the engine's own figures, which have ours in them, are not needed.
	polled              sample
	hasPolled           bool
	sawPrefill, sawStep bool
}

// period is a time in which a rank always had a prompt of ours.
type period struct {
	since time.Time
	// done are the features of the prompts that were answered, and doneWork what they were
	// expected to take.
	done     vector
	doneWork time.Duration
	prompts  int
	// spoilt: something was in it that is not known.
	spoilt bool
}

// mostPrompts of a period; one that goes on is taken as two, and what is half done at
// its end counts for the second.
const mostPrompts = 32

// overdueShare of the work that is expected is left at least, when the estimates have
// been exceeded.
const overdueShare = 4

// queue is how long the rank has to do with what it was given.
func (r *rank) queue(now time.Time) time.Duration {
	var left time.Duration
	if r.prompts > 0 {
		left = r.work - max(now.Sub(r.busy.since)-r.busy.doneWork, 0)
		left = max(left, r.work/overdueShare)
	}
	return left + time.Duration(r.otherPrompts)*r.usualWork
}

// begin counts a flight in.
func (r *rank) begin(f *Flight, now time.Time) {
	r.flights[f] = struct{}{}
	if f.load.Prefill {
		if r.prompts == 0 {
			r.busy = period{since: now, spoilt: r.otherPrompts > 0}
		}
		r.prompts++
		r.work += f.load.Work
	}
	if f.load.Decode {
		r.sequences++
		r.context += int64(f.load.Tokens)
	}
}

// first takes account of a first token. It may return a busy period that is over, and
// how long it was.
func (r *rank) first(f *Flight, now time.Time) (features vector, took time.Duration) {
	r.prompts--
	r.work -= f.load.Work
	r.usualWork += (f.load.Work - r.usualWork) / 8
	b := &r.busy
	x := prefillFeatures(f.load.Tokens, f.load.CachedTokens)
	b.done.add(&x)
	b.doneWork += f.load.Work
	b.prompts++
	if r.prompts > 0 && b.prompts < mostPrompts {
		return features, 0
	}
	if !b.spoilt {
		features, took = b.done, now.Sub(b.since)
	}
	// A period that began with prompts whose progress is not known is spoilt, too.
	r.busy = period{since: now, spoilt: r.otherPrompts > 0 || b.spoilt && r.prompts > 0}
	return features, took
}

// settle takes prompts whose first token nobody reports for answered when they should be.
func (r *rank) settle(now time.Time) {
	for f := range r.flights {
		if f.load.Blind && f.load.Prefill && f.first.IsZero() && !f.expected.After(now) {
			f.first = now
			r.busy.spoilt = true
			_, _ = r.first(f, now)
		}
	}
}

// abandon takes a prompt away that will have no first token.
func (r *rank) abandon(f *Flight, now time.Time) {
	r.prompts--
	r.work -= f.load.Work
	// How far it had got is not known.
	r.busy = period{since: now, spoilt: r.prompts > 0}
}

// end counts a flight out.
func (r *rank) end(f *Flight, now time.Time) {
	delete(r.flights, f)
	if f.load.Prefill && f.first.IsZero() {
		r.abandon(f, now)
	}
	if f.load.Decode {
		r.sequences--
		tokens := float64(int64(f.load.Tokens) + f.counted)
		r.context -= int64(f.load.Tokens) + f.counted
		r.usualContext += (tokens - r.usualContext) / 8
	}
}

// corrected takes account of a poll. own are the flights that there were before and
// after it: whatever the engine counted of ours is not more than the larger.
func (r *rank) corrected(s *sample, ownPrompts, ownFlights int) {
	r.polled, r.hasPolled = *s, true
	waiting, all := int(s.Waiting), int(s.Waiting+s.Running)
	r.otherPrompts = max(waiting-max(ownPrompts, r.prompts), 0)
	r.otherSequences = max(all-max(ownFlights, len(r.flights))-r.otherPrompts, 0)
	if r.otherPrompts > 0 {
		r.busy.spoilt = true
	}
}

// learn observes what an engine did for others between two polls. What it tells is a
// sum over prompts that may have shared the engine, so it says too much rather than too
// little.
func (r *rank) learn(s *sample, costs *Costs) {
	if r.hasPolled && !r.sawPrefill && s.Prefills > r.polled.Prefills && s.ComputedTokens >= r.polled.ComputedTokens {
		x := vector{s.Prefills - r.polled.Prefills, (s.ComputedTokens - r.polled.ComputedTokens) / tokenUnit, 0, 0}
		if took := seconds(s.PrefillSeconds - r.polled.PrefillSeconds); took > 0 {
			r.prefills.observe(costs.observePrefill(&x, took), took)
		}
	}
	if n := s.Steps - r.polled.Steps; r.hasPolled && !r.sawStep && n > 0 {
		x := stepFeatures(s.Running, s.Running*r.usualContext)
		if took := seconds((s.StepSeconds - r.polled.StepSeconds) / n); took > 0 {
			r.steps.observe(costs.observeStep(&x, took), time.Duration(n)*took)
		}
	}
	r.sawPrefill, r.sawStep = false, false
}

// prefiller returns the facts for a request.
func (r *rank) prefiller(now time.Time) scheduler.Prefiller {
	return scheduler.Prefiller{Queue: r.queue(now), Outstanding: r.prompts + r.otherPrompts, Slowness: r.prefills.value()}
}

func (r *rank) decoder() scheduler.Decoder {
	others := r.otherPrompts + r.otherSequences
	return scheduler.Decoder{
		Sequences: r.sequences + others, ContextTokens: r.context + int64(float64(others)*r.usualContext), Slowness: r.steps.value(),
	}
}
