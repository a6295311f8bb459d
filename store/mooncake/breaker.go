package mooncake

import "time"

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// fullPause is how long no room is asked for after the cluster had none.
	fullPause = time.Second
)

// breaker keeps calls from a master that does not answer. It is pure: its caller
// has the clock and the lock.
type breaker struct {
	open    bool
	probing bool
	why     error
	until   time.Time // when the next probe may go
	pause   time.Duration
	opened  uint64 // how often it opened
}

// verdict is what a breaker says to a call.
type verdict uint8

const (
	pass  verdict = iota // make the call
	probe                // ask a small question first, and tell the breaker
	deny
)

func (b *breaker) ask(now time.Time) verdict {
	switch {
	case !b.open:
		return pass
	case b.probing || now.Before(b.until):
		return deny
	}
	b.probing = true
	return probe
}

// failed notes that the master did not answer.
func (b *breaker) failed(now time.Time, why error) {
	if !b.open {
		b.opened++
		b.pause = 0
	}
	b.open, b.probing, b.why = true, false, why
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	b.until = now.Add(b.pause)
}

// answered ends a probe well. A late failure of an older call may open the
// breaker again: that costs one more probe.
func (b *breaker) answered() { b.open, b.probing, b.why = false, false, nil }

// gaveUp ends a probe that was not sent.
func (b *breaker) gaveUp() { b.probing = false }
