package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// conversation is a connection in frames.
type conversation struct {
	conn   Conn
	frames *connector.FrameReader

	writing sync.Mutex
	buf     []byte // guarded by writing
}

// keepWriteBytes is the largest write buffer kept between frames.
const keepWriteBytes = 256 << 10

func newConversation(conn Conn) *conversation {
	return &conversation{conn: conn, frames: connector.NewFrameReader(conn)}
}

// send writes a message. It may block as long as the peer does not read; closing
// the connection ends that.
func (c *conversation) send(msg any) error { return c.sendFDs(msg, nil) }

// sendInTurn is send; begin is called when no other message is being written.
func (c *conversation) sendInTurn(msg any, begin func()) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	begin()
	return c.sendFDsLocked(msg, nil)
}

func (c *conversation) sendFDs(msg any, fds []int) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.sendFDsLocked(msg, fds)
}

func (c *conversation) sendFDsLocked(msg any, fds []int) error {
	frame, err := connector.AppendFrame(c.buf[:0], msg)
	if err != nil {
		return err
	}
	if cap(frame) <= keepWriteBytes {
		c.buf = frame
	}
	if len(fds) > 0 {
		return c.conn.WriteFDs(frame, fds)
	}
	_, err = c.conn.Write(frame)
	return err
}

// refuse sends an error that ends the session.
func (c *conversation) refuse(code string, err error) error {
	sendErr := c.send(&connector.Error{Type: connector.TypeError, Code: code, Message: err.Error()})
	return errors.Join(err, sendErr)
}

// receive reads a message and the descriptors that it counts, which are the
// caller's. An error that is a *connector.MalformedError with a job is that
// frame's alone.
func (c *conversation) receive() (msg any, fds []int, err error) {
	frame, err := c.frames.Next()
	if err != nil {
		return nil, nil, err
	}
	msg, err = connector.Decode(frame)
	if err != nil {
		// What came with it is closed. That there was any is a lesser fault.
		_, _ = c.conn.TakeFDs(0)
		return nil, nil, err
	}
	count := 0
	if reg, ok := msg.(*connector.Register); ok {
		count = reg.FDs
	}
	if fds, err = c.conn.TakeFDs(count); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errBadDescriptor, err)
	}
	return msg, fds, nil
}

// hello reads the opening message.
func (c *conversation) hello(timeout time.Duration) (*connector.Hello, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	msg, fds, err := c.receive()
	if err != nil {
		return nil, err
	}
	closeFDs(fds)
	hello, ok := msg.(*connector.Hello)
	if !ok {
		return nil, fmt.Errorf("%w: %T before hello", errOutOfOrder, msg)
	}
	return hello, c.conn.SetReadDeadline(time.Time{})
}

// errOutOfOrder reports a message that is not due.
var errOutOfOrder = errors.New("message out of order")

// isEnd reports whether an error is only the end of a connection.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
