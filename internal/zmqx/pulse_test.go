package zmqx

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

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

// A request that is answered by many messages has a beat of its own: none delays the
// next by those before it.
func TestStreamedRepliesBeatInBetween(t *testing.T) {
	var rounds atomic.Int64
	transport, err := NewWith(Options{Interval: time.Millisecond, Pulse: pulse.New(func() { rounds.Add(1) })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() })
	const requests = 20
	endpoint := "ipc://" + filepath.Join(shortDir(t), "s")
	resume, at := make(chan struct{}), make(chan int64, requests)
	r, err := transport.ListenStream(endpoint, 10, func([][]byte, func([][]byte) bool) {
		<-resume
		at <- rounds.Load()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	socket, err := transport.newSocket(zmq4.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	if err := socket.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	for range requests {
		if _, err := socket.SendMessage("", "again"); err != nil {
			t.Fatal(err)
		}
	}
	close(resume)
	before := int64(-1)
	for i := range requests {
		now := <-at
		if now <= before {
			t.Errorf("no beat before request %d", i)
		}
		before = now
	}
}
