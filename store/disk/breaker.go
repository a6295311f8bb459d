package disk

import "time"

// breakerState is whether the disk is used.
type breakerState uint8

const (
	inService breakerState = iota
	outOfService
	onProbation // a probe is under way
)

// String returns the state's name in metrics and messages.
func (s breakerState) String() string {
	switch s {
	case inService:
		return "in service"
	case outOfService:
		return "out of service"
	case onProbation:
		return "on probation"
	}
	return "unknown"
}

const (
	// failuresToOpen are errors in a row; one missed deadline is enough.
	failuresToOpen = 3
	// firstCooldown doubles with every probe that fails, and when the disk does not
	// stay in service for as long as longestCooldown, which is the most.
	firstCooldown   = 2 * time.Second
	longestCooldown = time.Minute
)

// breaker takes a bad disk out of service. It is pure: its caller has the clock
// and the lock.
type breaker struct {
	state    breakerState
	failures int
	cooldown time.Duration
	until    time.Time // when the next probe is due, out of service
	since    time.Time // when it came into service
	opened   uint64    // how often it went out of service
}

// failed notes an error. late: a deadline was missed. It tells whether the disk
// goes out of service by it.
func (b *breaker) failed(now time.Time, late bool) bool {
	b.failures++
	switch b.state {
	case inService:
		if !late && b.failures < failuresToOpen {
			return false
		}
		if now.Sub(b.since) >= longestCooldown {
			b.cooldown = 0 // it was well for a while
		}
		b.cooldown = min(max(2*b.cooldown, firstCooldown), longestCooldown)
		b.opened++
	case onProbation:
		b.cooldown = min(2*b.cooldown, longestCooldown)
	case outOfService:
		return false // an echo of what is known
	}
	b.until = now.Add(b.cooldown)
	opened := b.state == inService
	b.state = outOfService
	return opened
}

// succeeded notes that a call came through.
func (b *breaker) succeeded() {
	if b.state == inService {
		b.failures = 0
	}
}

// probeIn returns how long to wait for the next probe.
//
// REQUIRES: the disk is out of service.
func (b *breaker) probeIn(now time.Time) time.Duration { return max(b.until.Sub(now), 0) }

// probe begins a probation, which probed or failed ends.
func (b *breaker) probe() { b.state = onProbation }

// probed ends a probation well.
func (b *breaker) probed(now time.Time) { b.state, b.failures, b.since = inService, 0, now }
