package daemon

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
)

// Peers that come all the time do not keep the loops that have nothing to do
// from being asked to go round.
func TestAcceptCallsIdleHoweverManyPeersCome(t *testing.T) {
	dir := shortDir(t)
	if err := config.EnsureRuntimeDir(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sessions.sock")
	l, err := unixmsg.Listen(path, unixmsg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sup := &supervision{pulse: pulse.New(func() {}), interval: 300 * time.Millisecond}
	idle, accepted := make(chan struct{}), 0
	accept := sup.accept(l, func() { close(idle); _ = l.Close() }) // once: the end of l ends all
	ended := make(chan error)
	go func() {
		for {
			conn, err := accept()
			if err != nil {
				ended <- err
				return
			}
			accepted++
			_ = conn.Close()
		}
	}()
	for waiting, deadline := true, time.Now().Add(patience); waiting; {
		select {
		case <-idle:
			waiting = false
		default:
			if conn, err := net.Dial("unix", path); err == nil {
				_ = conn.Close()
			}
			if time.Now().After(deadline) {
				t.Error("idle was not called while peers came")
				_ = l.Close()
				waiting = false
			}
		}
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept ended with %v", err)
	}
	if accepted == 0 {
		t.Error("no peer was accepted")
	}
}
