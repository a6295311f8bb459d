package unary

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxIdle bounds the connections that wait for their next call.
const maxIdle = 16

// Client makes calls. It is safe for concurrent use; each call under way has a
// connection of its own.
type Client struct {
	dial  func(ctx context.Context) (net.Conn, error)
	limit int

	mu     sync.Mutex
	idle   []*clientConn
	closed bool
}

var _ grpc.ClientConnInterface = (*Client)(nil)

// clientConn is a connection without a call, or the one call's.
type clientConn struct {
	net.Conn
	buf []byte
	// spent: a deadline of the last call may strike at any moment.
	spent bool
}

// NewClient returns a client that takes replies of up to limit bytes.
func NewClient(dial func(ctx context.Context) (net.Conn, error), limit int) *Client {
	return &Client{dial: dial, limit: limit}
}

// Close ends the connections. Calls under way fail or finish.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.flush()
	return nil
}

// Invoke implements grpc.ClientConnInterface. Options are not supported: there
// is nothing here that they could change.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	request, ok := args.(proto.Message)
	answer, ok2 := reply.(proto.Message)
	if !ok || !ok2 {
		return status.Errorf(codes.Internal, "BUG: call with a %T for a %T", args, reply)
	}
	for {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		conn, used, err := c.take(ctx)
		if err != nil {
			if ctxErr := ctx.Err(); ctxErr != nil {
				return status.FromContextError(ctxErr).Err()
			}
			return status.Errorf(codes.Unavailable, "%s: %v", method, err)
		}
		err = conn.call(ctx, method, request, answer, c.limit)
		var broken *brokenError
		if !errors.As(err, &broken) {
			c.put(conn)
			return err
		}
		_ = conn.Close() // its error is known
		switch ctxErr := ctx.Err(); {
		case ctxErr != nil:
			return status.FromContextError(ctxErr).Err()
		case errors.Is(err, os.ErrDeadlineExceeded): // the context's, whose timer is a little later
			return status.FromContextError(context.DeadlineExceeded).Err()
		}
		c.flush()
		// A connection that had ended while it was idle: the daemon at its other end
		// is gone, and whatever it may have done for this call with it.
		if !used || !broken.unanswered {
			return status.Errorf(codes.Unavailable, "%s: %v", method, broken.err)
		}
	}
}

// NewStream implements grpc.ClientConnInterface.
func (c *Client) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams on this transport")
}

// take returns a connection, and whether it has had a call before.
func (c *Client) take(ctx context.Context) (conn *clientConn, used bool, err error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		conn, c.idle = c.idle[n-1], c.idle[:n-1]
	}
	closed := c.closed
	c.mu.Unlock()
	switch {
	case conn != nil:
		return conn, true, nil
	case closed:
		return nil, false, net.ErrClosed
	}
	raw, err := c.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	return &clientConn{Conn: raw}, false, nil
}

func (c *Client) put(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || conn.spent || len(c.idle) >= maxIdle {
		_ = conn.Close() // nothing is under way on it
		return
	}
	c.idle = append(c.idle, conn)
}

// flush ends the connections that have no call.
func (c *Client) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.idle {
		_ = conn.Close() // nothing is under way on it
	}
	c.idle = nil
}

// brokenError: the connection is of no use any more.
type brokenError struct {
	err error
	// unanswered: not a byte of the reply came.
	unanswered bool
}

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// call makes one call. A *brokenError means that the connection has to go.
func (conn *clientConn) call(ctx context.Context, method string, request, answer proto.Message, limit int) error {
	frame, err := appendRequest(conn.buf[:0], method, request)
	if err != nil {
		return status.Errorf(codes.Internal, "%s: encode: %v", method, err)
	}
	deadline, _ := ctx.Deadline() // none: the zero time
	if err := conn.SetDeadline(deadline); err != nil {
		return &brokenError{err: err, unanswered: true}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) }) // the read below reports it
	defer stop()
	if _, err := conn.Write(frame); err != nil {
		return &brokenError{err: err, unanswered: true}
	}
	counted := &counter{Conn: conn.Conn}
	body, err := readFrame(counted, frame[:0], limit)
	if err != nil {
		return &brokenError{err: err, unanswered: counted.n == 0}
	}
	conn.spent = !stop()
	conn.buf = kept(body)
	code, rest, err := splitReply(body)
	if err != nil {
		return &brokenError{err: err}
	}
	if code != codes.OK {
		return status.Error(code, string(rest))
	}
	if err := proto.Unmarshal(rest, answer); err != nil {
		return &brokenError{err: fmt.Errorf("decode the reply: %w", err)}
	}
	return nil
}

// counter counts the bytes that were read.
type counter struct {
	net.Conn
	n int
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n += n
	return n, err
}
