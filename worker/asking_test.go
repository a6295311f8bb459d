package worker

import (
	"testing"
	"time"
)

// TestLoadsThatTakeLongAskSeldom: what a load waits at most between its questions grows
// with what it has taken and with what a question takes, within bounds.
func TestLoadsThatTakeLongAskSeldom(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ taken, asking, want time.Duration }{
		{0, 0, 8 * ms},
		{256 * ms, ms / 4, 8 * ms},
		{320 * ms, ms / 4, 10 * ms},
		{32 * ms, 12 * ms, 24 * ms}, // of thousands of chunks
		{time.Minute, 0, 50 * ms},
		{0, time.Second, 50 * ms},
	} {
		if got := nextAsk(c.taken, c.asking); got != c.want {
			t.Errorf("after %s and a question of %s: a wait of %s, want %s", c.taken, c.asking, got, c.want)
		}
	}
}
