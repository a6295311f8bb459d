package unixmsg

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxFDs is the most descriptors one write carries (SCM_MAX_FD), and the most a
// Conn queues.
const MaxFDs = 253

var (
	// ErrTooManyFDs reports a peer that sent more descriptors than a Conn queues.
	ErrTooManyFDs = errors.New("too many descriptors")
	// ErrFDCount reports a frame whose descriptors are not those it counts.
	ErrFDCount = errors.New("wrong number of descriptors")
)

// Peer is who is at the other end, as the kernel says it.
type Peer struct {
	UID, GID, PID int
	// Groups are the supplementary groups.
	Groups []int
}

// Conn is a connected socket. Reads belong to one goroutine, writes to one at a
// time; Close may come from any.
type Conn struct {
	sock *net.UnixConn
	peer Peer
	oob  []byte

	mu     sync.Mutex
	fds    []int // received and not taken
	closed bool
}

func newConn(sock *net.UnixConn) (*Conn, error) {
	peer, err := credentials(sock)
	if err != nil {
		return nil, err
	}
	return &Conn{sock: sock, peer: peer, oob: make([]byte, unix.CmsgSpace(MaxFDs*4))}, nil
}

// credentials asks for the ids that the peer had when it connected or listened.
func credentials(sock *net.UnixConn) (Peer, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var groups []int
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			groups, credErr = peerGroups(int(fd))
		}
	}); err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", credErr)
	}
	return Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid), Groups: groups}, nil
}

// Peer returns the peer's credentials.
func (c *Conn) Peer() Peer { return c.peer }

// PeerPID returns the peer's process id in our process id namespace, 0 when it
// is in none that we see.
func (c *Conn) PeerPID() int { return c.peer.PID }

// Read reads bytes and queues the descriptors that came with them. When those
// can't be queued the bytes are withheld too: the stream is of no use any more.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(p, c.oob)
	if oobn > 0 {
		if err := c.queue(c.oob[:oobn]); err != nil {
			return 0, err
		}
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && n == 0:
		return 0, io.EOF // unwrapped, as io.Reader wants it
	case err != nil:
		return n, err
	case flags&unix.MSG_CTRUNC != 0:
		return 0, fmt.Errorf("read: %w", ErrTooManyFDs)
	}
	return n, nil
}

// queue takes the descriptors out of control messages.
func (c *Conn) queue(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("read control message: %w", err)
	}
	var got []int
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(got)
			return fmt.Errorf("read control message: %w", err)
		}
		got = append(got, fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.fds)+len(got) > MaxFDs {
		closeAll(got)
		return fmt.Errorf("read: %w", ErrTooManyFDs)
	}
	c.fds = append(c.fds, got...)
	return nil
}

// TakeFDs hands over the queued descriptors, which must be n. When they are not,
// they are closed. The descriptors are close-on-exec.
func (c *Conn) TakeFDs(n int) ([]int, error) {
	c.mu.Lock()
	fds := c.fds
	c.fds = nil
	c.mu.Unlock()
	if len(fds) != n {
		closeAll(fds)
		return nil, fmt.Errorf("%w: %d came, the frame counts %d", ErrFDCount, len(fds), n)
	}
	return fds, nil
}

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) { return c.sock.Write(p) }

// WriteFDs writes all of p with descriptors at its first byte. The descriptors
// stay the caller's.
//
// REQUIRES: p is not empty.
func (c *Conn) WriteFDs(p []byte, fds []int) error {
	if len(fds) > MaxFDs {
		return fmt.Errorf("write: %w: %d, at most %d", ErrTooManyFDs, len(fds), MaxFDs)
	}
	if len(fds) == 0 {
		_, err := c.sock.Write(p)
		return err
	}
	n, _, err := c.sock.WriteMsgUnix(p, unix.UnixRights(fds...), nil)
	if err != nil {
		return err
	}
	if n < len(p) {
		_, err = c.sock.Write(p[n:])
	}
	return err
}

// SetReadDeadline bounds the reads that follow; the zero time takes the bound
// away.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.sock.SetReadDeadline(t) }

// SetWriteDeadline bounds the writes that follow.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.sock.SetWriteDeadline(t) }

// Close closes the socket and the descriptors that nobody took. Reads and writes
// under way return.
func (c *Conn) Close() error {
	c.mu.Lock()
	closeAll(c.fds)
	c.fds = nil
	c.closed = true
	c.mu.Unlock()
	return c.sock.Close()
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing can be done about it, and Linux always frees the number
	}
}
