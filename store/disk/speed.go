package disk

import "time"

// speed estimates how fast the disk is read: bytes over the time in which at
// least one read was under way. It is pure.
type speed struct {
	rate   float64 // bytes a second
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
)

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
		s.rate += (s.bytes/s.busy.Seconds() - s.rate) / 4
		s.busy, s.bytes = 0, 0
	}
}
