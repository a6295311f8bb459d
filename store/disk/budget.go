package disk

import "time"

// budget bounds the bytes written a second: a bucket that fills at the rate and
// holds a second of it. It may be overdrawn by one batch, so that a batch larger
// than the bucket is written at all. The zero rate is no bound. It is pure.
type budget struct {
	rate  float64 // bytes a second
	level float64
	at    time.Time
}

func newBudget(bytesPerSecond uint64, now time.Time) budget {
	return budget{rate: float64(bytesPerSecond), level: float64(bytesPerSecond), at: now}
}

// wait returns how long until something may be written.
func (b *budget) wait(now time.Time) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.fill(now)
	if b.level > 0 {
		return 0
	}
	// A little more than needed, so that rounding does not make a second wait of 0.
	return time.Duration(-b.level/b.rate*float64(time.Second)) + time.Millisecond
}

// spend takes what is about to be written.
func (b *budget) spend(now time.Time, bytes int) {
	if b.rate != 0 {
		b.fill(now)
		b.level -= float64(bytes)
	}
}

// fill stands clocks that go back: time counts while it goes forth.
func (b *budget) fill(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.level = min(b.level+b.rate*passed.Seconds(), b.rate)
	}
	b.at = now
}
