package daemon

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// watchedConn is a connection that ends with its peer's process. The socket's end
// says so as well, but not while a child of the peer's has the socket, too: an
// engine's memory would stay mapped, and not be free, for as long as that lives.
type watchedConn struct {
	*unixmsg.Conn
	process *os.File      // readable when it has ended
	watched chan struct{} // closed at the watch's end
}

// untilPeerEnds returns conn, watched if its peer can be seen from here.
func untilPeerEnds(conn *unixmsg.Conn) worker.Conn {
	pid := conn.PeerPID()
	if pid <= 0 {
		return conn // in another pid namespace
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return conn // it has ended, and so has the socket; or this kernel does not do that
	}
	// Not by a flag of the call, which kernels have since 5.10 only.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd) // nobody has it
		return conn
	}
	w := &watchedConn{Conn: conn, process: os.NewFile(uintptr(fd), "pidfd"), watched: make(chan struct{})}
	raw, err := w.process.SyscallConn()
	if err != nil {
		_ = w.process.Close() // it was open
		return conn
	}
	go func() {
		defer close(w.watched)
		if raw.Read(hasEnded) == nil {
			_ = conn.Close() // the session's reader sees it
		}
	}()
	return w
}

// hasEnded looks whether a process has.
func hasEnded(pidfd uintptr) bool {
	polled := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(polled, 0)
	return n > 0 && err == nil
}

// Close implements worker.Conn.
func (w *watchedConn) Close() error {
	_ = w.process.Close() // ends the watch
	<-w.watched
	return w.Conn.Close()
}
