package embedded

import "time"

// storeClock counts the seconds of a segment's life: what the times in records
// are counted in. It only goes forward, however the clock behind it is set, and
// stands in the segment's header, so that a new master counts on.
//
// A clock that is set back stands still for an instant and counts on from there.
// One that is set forward expires chunks early, which costs misses; the daemon
// gives the master a clock that nobody sets.
type storeClock struct {
	last    time.Time
	elapsed time.Duration
}

// clockStart is a new segment's time: 0 means never in a record.
const clockStart = time.Second

// maxAway bounds the time for which a store counts as without a master: longer
// means that the clock was set.
const maxAway = 30 * 24 * time.Hour

// resumeClock goes on from an earlier master's last reading, taken at that time
// of its clock.
func resumeClock(now time.Time, elapsed time.Duration, at time.Time) storeClock {
	away := now.Sub(at)
	if away < 0 || away > maxAway {
		away = 0
	}
	return storeClock{last: now, elapsed: max(elapsed, clockStart) + away}
}

// read returns the time since the segment was made.
func (c *storeClock) read(now time.Time) time.Duration {
	if d := now.Sub(c.last); d > 0 {
		c.elapsed += d
	}
	c.last = now
	return c.elapsed
}

// maxTTL is longer than any segment lives, and fits a record.
const maxTTL = 100 * 365 * 24 * time.Hour

// deadline returns the second at which a time to live that begins now ends, 0
// for one that never does. Fractions of a second are the chunk's.
func deadline(now, ttl time.Duration) uint32 {
	if ttl <= 0 {
		return 0
	}
	return uint32(min((now+min(ttl, maxTTL)+time.Second-1)/time.Second, 1<<32-1))
}

// passed tells whether a deadline is over.
func passed(now time.Duration, deadline uint32) bool {
	return deadline != 0 && uint64(now/time.Second) >= uint64(deadline)
}

// useTick is the unit of a record's last use: 32 bits of it last 497 days.
const useTick = 10 * time.Millisecond

func ticks(now time.Duration) uint32 { return uint32(uint64(now / useTick)) }

// age returns how long ago a use was.
func age(now time.Duration, use uint32) time.Duration {
	return time.Duration(ticks(now)-use) * useTick
}

// The clock in the header: nanoseconds of the segment's life, and what the clock
// behind it showed then.
const (
	hdrClock   = 96
	hdrClockAt = 104
)

func (s *segment) clockValue() time.Duration { return time.Duration(le.Uint64(s.mem[hdrClock:])) }

func (s *segment) clockTime() time.Time { return time.Unix(0, int64(le.Uint64(s.mem[hdrClockAt:]))) }

func (s *segment) setClock(elapsed time.Duration, at time.Time) {
	le.PutUint64(s.mem[hdrClock:], uint64(elapsed))
	le.PutUint64(s.mem[hdrClockAt:], uint64(at.UnixNano()))
}

// timeLocked reads the clock.
func (m *Master) timeLocked() time.Duration { return m.clock.read(m.opts.Now()) }
