package network

import (
	"testing"
	"time"
)

// TestQueues: a transfer waits for its sender's link out and its receiver's link
// in, and for no other; a link that waits for its peer goes on with the next.
func TestQueues(t *testing.T) {
	n := New(4, 1e9)
	if got := n.Send(0, 0, 1, 2e9); got != 2*time.Second {
		t.Errorf("an idle link took %v", got)
	}
	for _, c := range []struct {
		from, to int
		wait     time.Duration
	}{{0, 2, 2 * time.Second}, {3, 1, 2 * time.Second}, {1, 0, 0}, {2, 3, 0}} {
		if got := n.Wait(0, c.from, c.to); got != c.wait {
			t.Errorf("%d to %d waits %v, want %v", c.from, c.to, got, c.wait)
		}
	}
	if got := n.Send(time.Second, 0, 2, 1e9); got != 3*time.Second {
		t.Errorf("behind another: %v", got)
	}
	if got := n.Send(time.Second, 3, 1, 1e9); got != 3*time.Second {
		t.Errorf("to a link that is taken: %v", got)
	}
	if got := n.Send(time.Second, 3, 2, 1e9); got != 3*time.Second {
		t.Errorf("behind one that waits elsewhere: %v", got)
	}
	if n.Wait(5*time.Second, 0, 2) != 0 || n.OutWait(2*time.Second, 0) != time.Second || n.InWait(2*time.Second, 1) != time.Second {
		t.Error("a link is taken for a wrong time")
	}
}
