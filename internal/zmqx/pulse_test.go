package zmqx

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/pulse"
)

func TestAStuckHandlerStopsThePulse(t *testing.T) {
	var rounds atomic.Int64
	transport, err := NewWith(Options{Interval: time.Millisecond, Mode: 0o660, Pulse: pulse.New(func() { rounds.Add(1) })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() })
	until := func(n int64) {
		t.Helper()
		for deadline := time.Now().Add(patience); rounds.Load() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d rounds, want %d", rounds.Load(), n)
			}
		}
	}
	path := filepath.Join(shortDir(t), "s")
	stuck, resume := make(chan struct{}), make(chan struct{})
	listen(t, transport, path, func(frames [][]byte) [][]byte {
		close(stuck)
		<-resume
		return frames
	})
	listen(t, transport, path+"2", echo)
	until(3) // both are idle, and go round

	busy, idle := dial(t, transport, path), dial(t, transport, path+"2")
	answered := make(chan error, 1)
	go func() {
		_, err := busy.Request(patience, []byte{1})
		answered <- err
	}()
	<-stuck
	before := rounds.Load()
	for range 10 { // each answer is a round of the other loop's
		if _, err := idle.Request(patience, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	// The stuck loop may have beaten once before it got stuck.
	if more := rounds.Load() - before; more > 1 {
		t.Errorf("%d rounds were complete although a handler is stuck", more)
	}
	close(resume)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	until(rounds.Load() + 3)
}
