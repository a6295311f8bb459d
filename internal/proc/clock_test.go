package proc

import "testing"

func TestBootClockGoesForward(t *testing.T) {
	last := BootClock()
	for range 1000 {
		now := BootClock()
		if now.Before(last) {
			t.Fatalf("%v after %v", now, last)
		}
		last = now
	}
	if last.Unix() > 100*365*24*3600 || last.UnixNano() <= 0 {
		t.Errorf("%v is no time since the start", last)
	}
}
