package unixmsg

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotStream: a descriptor is no Unix stream socket.
var ErrNotStream = errors.New("not a Unix stream socket")

// Stream is a connected stream socket on which a read or write holds a thread of
// the system while it waits. The runtime's poller, which needs none, wakes a
// goroutine by way of other threads: too long for who asks and waits for the
// answer.
type Stream struct {
	fd int
	// users are the calls that go on: while one does, the descriptor stays open.
	users  sync.RWMutex
	closed bool // guarded by users
	once   sync.Once
}

// AdoptStream makes a stream of a descriptor that a peer sent. The descriptor is
// consumed, also on failure.
func AdoptStream(fd int) (*Stream, error) {
	domain, domainErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, kindErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if domainErr != nil || kindErr != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		if fd >= 0 {
			_ = unix.Close(fd) // it is of no use here
		}
		return nil, fmt.Errorf("adopt %d: %w", fd, ErrNotStream)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(fmt.Errorf("adopt %d: %w", fd, err), unix.Close(fd))
	}
	return &Stream{fd: fd}, nil
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.call("read", func() (int, error) { return unix.Read(s.fd, p) })
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := s.call("write", func() (int, error) { return unix.SendmsgN(s.fd, p[written:], nil, nil, unix.MSG_NOSIGNAL) })
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// call makes one call of the system, again if a signal ended it.
func (s *Stream) call(what string, do func() (int, error)) (int, error) {
	s.users.RLock()
	defer s.users.RUnlock()
	if s.closed {
		return 0, fmt.Errorf("%s: %w", what, net.ErrClosed)
	}
	for {
		n, err := do()
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EINTR):
			return 0, fmt.Errorf("%s: %w", what, err)
		}
	}
}

// Close ends what waits, for which it waits in turn, and closes the socket.
func (s *Stream) Close() (err error) {
	s.once.Do(func() {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // the peer may have gone
		s.users.Lock()
		defer s.users.Unlock()
		s.closed = true
		if err = unix.Close(s.fd); err != nil {
			err = fmt.Errorf("close: %w", err)
		}
	})
	return err
}
