package worker

import (
	"testing"
	"time"
)

// TestLoadsThatTakeLongAskSeldom: a load's pauses between its questions grow with what
// it has taken and with what a question takes, within bounds.
func TestLoadsThatTakeLongAskSeldom(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ taken, asking, want time.Duration }{
		{0, 0, 2 * ms},
		{32 * ms, ms / 4, 2 * ms},
		{320 * ms, ms / 4, 10 * ms},
		{32 * ms, 12 * ms, 24 * ms}, // of thousands of chunks
		{time.Minute, 0, 50 * ms},
		{0, time.Second, 50 * ms},
	} {
		if got := nextAsk(c.taken, c.asking); got != c.want {
			t.Errorf("after %s and a question of %s: a pause of %s, want %s", c.taken, c.asking, got, c.want)
		}
	}
}
