package network

import (
	"testing"
	"time"
)

// TestQueues: a transfer waits for its sender's link out and its receiver's link
// in, and for no other.
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
	if n.Wait(5*time.Second, 0, 2) != 0 {
		t.Error("a link is taken after its last transfer")
	}
	if n.Bytes() != 3e9 || n.Transfers() != 2 {
		t.Errorf("%d bytes in %d transfers", n.Bytes(), n.Transfers())
	}
}
