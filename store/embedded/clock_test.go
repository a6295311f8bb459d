package embedded

import (
	"testing"
	"time"
)

func TestClockGoesForwardOnly(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	c := resumeClock(start, 0, start)
	if got := c.read(start); got != clockStart {
		t.Fatalf("a new segment's time is %v, want %v", got, clockStart)
	}
	steps := []struct {
		at   time.Time
		want time.Duration
	}{
		{start.Add(10 * time.Second), 11 * time.Second},
		{start.Add(-time.Hour), 11 * time.Second}, // set back
		{start.Add(-time.Hour + 5*time.Second), 16 * time.Second},
		{start.Add(-time.Hour + 5*time.Second), 16 * time.Second},
		{start.Add(time.Hour), time.Hour + 16*time.Second + time.Hour - 5*time.Second}, // set forward
	}
	for _, s := range steps {
		if got := c.read(s.at); got != s.want {
			t.Fatalf("at %v: %v, want %v", s.at, got, s.want)
		}
	}
}

func TestClockCountsOnInANewMaster(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		now  time.Time
		want time.Duration
	}{
		{at, time.Minute},
		{at.Add(3 * time.Second), time.Minute + 3*time.Second},
		{at.Add(-time.Hour), time.Minute},                // set back meanwhile
		{at.Add(50 * 365 * 24 * time.Hour), time.Minute}, // set forward meanwhile
	} {
		c := resumeClock(test.now, time.Minute, at)
		if got := c.read(test.now); got != test.want {
			t.Errorf("resumed at %v: %v, want %v", test.now, got, test.want)
		}
	}
}

func TestDeadline(t *testing.T) {
	now := 10*time.Second + 300*time.Millisecond
	for _, test := range []struct {
		ttl  time.Duration
		want uint32
	}{{0, 0}, {-1, 0}, {1, 11}, {700 * time.Millisecond, 11}, {time.Second, 12}, {1 << 62, uint32((maxTTL + 11*time.Second) / time.Second)}} {
		if got := deadline(now, test.ttl); got != test.want {
			t.Errorf("deadline(%v) = %d, want %d", test.ttl, got, test.want)
		}
	}
	if passed(1<<62, 0) || passed(11*time.Second-1, 11) || !passed(11*time.Second, 11) {
		t.Error("a deadline passes at the wrong time")
	}
}

func TestAgeOverTheEndOfTheCounter(t *testing.T) {
	late := time.Duration(1<<32) * useTick
	use := ticks(late - time.Second)
	if got := age(late+time.Second, use); got != 2*time.Second {
		t.Errorf("age %v, want 2s", got)
	}
}
