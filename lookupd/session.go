package lookupd

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// writeTimeout bounds one answer to a peer that does not read.
const writeTimeout = 5 * time.Second

// Session is one peer's conversation.
type Session struct {
	// Number is unique for the daemon's life, and never one of an earlier daemon
	// but by a rare chance; it is the welcome's.
	Number uint64
	// Hello is what the peer said of itself.
	Hello connector.Hello

	conn   Conn
	frames *connector.FrameReader
	// channel is the descriptor of the last lookup_channel message, -1 once it was
	// taken. It belongs to whoever receives.
	channel int
	out     struct {
		sync.Mutex
		buf []byte
	}
}

func newSession(number uint64, conn Conn) *Session {
	return &Session{Number: number, conn: conn, frames: connector.NewFrameReader(conn), channel: -1}
}

// Receive returns the next message, a pointer to one of the connector's. Only
// one goroutine may receive. io.EOF is the peer's end. Descriptors are refused,
// but for a lookup channel's.
func (s *Session) Receive() (any, error) {
	frame, err := s.frames.Next()
	if err != nil {
		return nil, err
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		return nil, err
	}
	wanted := 0
	if opening, ok := msg.(*connector.LookupChannel); ok {
		wanted = opening.FDs
	}
	fds, err := s.conn.TakeFDs(wanted)
	if err != nil {
		return nil, &connector.MalformedError{Err: err}
	}
	if wanted > 0 {
		s.closeChannel()
		s.channel = fds[0]
	}
	return msg, nil
}

// takeChannel hands over the descriptor of the last lookup_channel message.
func (s *Session) takeChannel() int {
	fd := s.channel
	s.channel = -1
	return fd
}

// closeChannel closes a descriptor that nobody took.
func (s *Session) closeChannel() {
	if fd := s.takeChannel(); fd >= 0 {
		_ = syscall.Close(fd) // nothing can be done about it
	}
}

// Send writes a message with descriptors, which stay the caller's. It is safe
// for concurrent use.
func (s *Session) Send(msg any, fds ...int) error {
	s.out.Lock()
	defer s.out.Unlock()
	frame, err := connector.AppendFrame(s.out.buf[:0], msg)
	if err != nil {
		return err
	}
	s.out.buf = frame[:0]
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return s.conn.WriteFDs(frame, fds)
}

// Close ends the session: Receive returns.
func (s *Session) Close() { _ = s.conn.Close() } // who receives reports it

// PeerPID is the peer's process id as the kernel says it, 0 for one that we can't
// see. The hello's may be another's.
func (s *Session) PeerPID() int { return s.conn.PeerPID() }

// Refuse answers with an error message and returns the reason. The session is to
// be closed then.
func (s *Session) Refuse(code string, reason error) error {
	err := s.Send(&connector.Error{Type: connector.TypeError, Code: code, Message: reason.Error()})
	return errors.Join(reason, err)
}

// refuseUnreadable answers an error of Receive that is the peer's fault, and
// returns what is to be logged: nil for an orderly end.
func (s *Session) refuseUnreadable(err error) error {
	var malformed *connector.MalformedError
	switch {
	case errors.As(err, &malformed), errors.Is(err, connector.ErrFrameTooLong):
		return s.Refuse(connector.CodeMalformed, err)
	}
	return endOfSession(err)
}

// unexpected answers a message that has no place in the conversation.
func (s *Session) unexpected(msg any) error {
	return s.Refuse(connector.CodeNotAllowed, fmt.Errorf("a %T has no place in a session of role %s", msg, s.Hello.Role))
}
