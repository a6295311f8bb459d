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
}

// begin starts the question to the store.
func (t *times) begin() { t.at = time.Now() }

// answered ends it, well or not; what follows is moving.
func (t *times) answered(chunks int) {
	now := time.Now()
	t.asked, t.ask, t.at = chunks, now.Sub(t.at), now
}

// fill completes a result, at the job's end. A job that asked nothing leaves it
// as it is.
func (t *times) fill(r *connector.Result) {
	if t.asked == 0 {
		return
	}
	r.Asked, r.AskMicros, r.MoveMicros = t.asked, t.ask.Microseconds(), t.move.Microseconds()
}

// moved ends the copies and their publication.
func (t *times) moved() { t.move = time.Since(t.at) }
