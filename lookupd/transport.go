package lookupd

import (
	"errors"
	"io"
	"time"
)

var (
	// ErrPathTaken: the wanted lookup path belongs to a live server, or to what is no
	// socket. Listen functions wrap it.
	ErrPathTaken = errors.New("lookup path is taken")
	// ErrBadPath: the path can't become a socket, whoever asks for it.
	ErrBadPath = errors.New("lookup path can't be used")
)

// Endpoint is a bound lookup socket.
type Endpoint interface {
	// Done is closed when the endpoint has stopped answering for good.
	Done() <-chan struct{}
	// Close stops answering, waits for the request at hand and unbinds.
	Close() error
}

// ListenFunc binds a lookup socket and calls handle for each request, one at a
// time. The reply, frames included, is valid until the next call.
type ListenFunc func(path string, handle func(frames [][]byte) [][]byte) (Endpoint, error)

// Channel is our end of a connected stream socket. Reading and writing may go on
// at the same time, and Close ends both.
type Channel interface{ io.ReadWriteCloser }

// AdoptFunc makes a channel of a descriptor that a peer sent, and takes the
// descriptor over, also when it fails.
type AdoptFunc func(fd int) (Channel, error)

// Conn is the byte stream of a session.
type Conn interface {
	io.ReadWriteCloser
	// WriteFDs writes p with descriptors, which stay the caller's.
	WriteFDs(p []byte, fds []int) error
	// TakeFDs hands over the n descriptors that came with what was read; any
	// other number is an error.
	TakeFDs(n int) ([]int, error)
	// PeerPID is the peer's process id as the kernel says it, 0 for one that we
	// can't see.
	PeerPID() int
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// Acceptor hands out new connections, whose peers' credentials it has checked.
type Acceptor interface {
	// Accept waits for the next connection. After Close it returns net.ErrClosed;
	// any other error concerns one peer only.
	Accept() (Conn, error)
	Close() error
}
