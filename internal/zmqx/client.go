package zmqx

import (
	"fmt"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
)

// Client asks a Responder, or any REP server. It is not safe for concurrent use.
type Client struct {
	socket *zmq4.Socket
	poller *zmq4.Poller
}

// Dial makes a client of the server at path. The server need not be there yet.
func (t *Transport) Dial(path string) (*Client, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	socket, err := t.newSocket(zmq4.DEALER)
	if err != nil {
		return nil, err
	}
	if err := socket.Connect("ipc://" + path); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("zmqx: connect %s: %w", path, err)
	}
	c := &Client{socket: socket, poller: zmq4.NewPoller()}
	c.poller.Add(socket, zmq4.POLLIN)
	return c, nil
}

// Request sends frames and returns the answer's. After ErrTimeout the client
// must be closed: the answer may still come, and would be taken for the next
// one's.
func (c *Client) Request(timeout time.Duration, frames ...[]byte) ([][]byte, error) {
	message := make([]any, 0, len(frames)+1)
	message = append(message, []byte{})
	for _, frame := range frames {
		message = append(message, frame)
	}
	if _, err := c.socket.SendMessageDontwait(message...); err != nil {
		return nil, fmt.Errorf("zmqx: send: %w", err)
	}
	for {
		ready, err := c.poller.Poll(timeout)
		switch {
		case isErrno(err, syscall.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("zmqx: poll: %w", err)
		case len(ready) == 0:
			return nil, fmt.Errorf("zmqx: %w (%s)", ErrTimeout, timeout)
		}
		reply, err := c.socket.RecvMessageBytes(0)
		if err != nil {
			return nil, fmt.Errorf("zmqx: receive: %w", err)
		}
		if len(reply) < 2 || len(reply[0]) != 0 {
			return nil, fmt.Errorf("zmqx: answer of %d frames without a delimiter", len(reply))
		}
		return reply[1:], nil
	}
}

// Close closes the socket.
func (c *Client) Close() error { return c.socket.Close() }
