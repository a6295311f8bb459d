package disk

import (
	"math"
	"time"
)

// speed estimates how fast the disk is read: bytes over the time in which at
// least one read was under way. It is pure.
type speed struct {
	rate   float64   // bytes a second
	at     time.Time // of the estimate; zero: there is none yet
	active int
	since  time.Time
	busy   time.Duration
	bytes  float64
}

const (
	// firstRate is what is reckoned with before anything was read.
	firstRate = 256 << 20
	// speedWindow is the time of reading that makes a new estimate.
	speedWindow = 50 * time.Millisecond
	// leastRate is the slowest that an estimate becomes, and speedAge is how long
	// one is worth something: it doubles each time up to firstRate. A disk that is
	// thought too slow for any chunk is not read from, so that nothing else would
	// show that it has become faster.
	leastRate = 1 << 20
	speedAge  = 10 * time.Second
)

// expect returns how many bytes a second the disk should read now.
func (s *speed) expect(now time.Time) float64 {
	old := now.Sub(s.at)
	if s.at.IsZero() || s.rate >= firstRate || old < speedAge {
		return s.rate
	}
	return min(s.rate*math.Exp2(float64(old/speedAge)), firstRate)
}

func newSpeed() speed { return speed{rate: firstRate} }

func (s *speed) begin(now time.Time) {
	if s.active == 0 {
		s.since = now
	}
	s.active++
}

func (s *speed) end(now time.Time, bytes int) {
	s.active--
	if passed := now.Sub(s.since); passed > 0 {
		s.busy += passed
	}
	s.since = now
	s.bytes += float64(bytes)
	if s.busy >= speedWindow {
		// A window weighs by its length: of one that took a second little is left of
		// what was thought before.
		before := math.Pow(0.75, float64(s.busy)/float64(speedWindow))
		s.rate = max(before*s.rate+(1-before)*s.bytes/s.busy.Seconds(), leastRate)
		s.busy, s.bytes, s.at = 0, 0, now
	}
}
