package worker

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// times is what a result says of how a job's time was spent.
type times struct {
	asked     int // chunks the store was asked for
	ask, move time.Duration
	at        time.Time
	waited    time.Duration // by the job, until at
}

// begin starts the question to the store.
func (t *times) begin() { t.at = time.Now() }

// answered ends it, well or not; what follows is moving. waited is how long the
// job has waited until now.
func (t *times) answered(chunks int, waited time.Duration) {
	now := time.Now()
	t.ask += now.Sub(t.at)
	t.asked, t.at, t.waited = chunks, now, waited
}

// restart forgets what was before, but for what was asked.
func (t *times) restart() { *t = times{asked: t.asked, at: time.Now()} }

// fill completes a result, at the job's end. A job that asked nothing leaves it
// as it is.
func (t *times) fill(r *connector.Result) {
	if t.asked == 0 {
		return
	}
	r.Asked, r.AskMicros, r.MoveMicros = t.asked, t.ask.Microseconds(), t.move.Microseconds()
}

// moved ends the copies and their publication; what follows, if anything, is asking.
// What the job waited meanwhile is no part of them.
func (t *times) moved(waited time.Duration) {
	now := time.Now()
	t.move += now.Sub(t.at) - (waited - t.waited)
	t.at = now
}
