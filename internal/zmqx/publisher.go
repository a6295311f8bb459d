package zmqx

import (
	"errors"
	"fmt"
	"sync"

	"github.com/pebbe/zmq4"
)

// Publisher sends messages to whoever has subscribed. A subscriber that does not
// read loses what exceeds its queue, and holds nobody up.
type Publisher struct {
	path string // of an ipc endpoint
	own  fileID

	mu     sync.Mutex // guards the socket: one at a time
	socket *zmq4.Socket
}

// Publish binds an endpoint, ipc or tcp. queue bounds the messages that wait for one
// subscriber.
func (t *Transport) Publish(endpoint string, queue int) (*Publisher, error) {
	socket, err := t.newSocket(zmq4.PUB)
	if err != nil {
		return nil, err
	}
	p := &Publisher{socket: socket}
	if err = socket.SetSndhwm(queue); err == nil {
		p.path, p.own, err = bindEndpoint(socket, endpoint, t.opts.Mode)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return p, nil
}

// Send sends a message; the first frame is what subscriptions are compared with.
func (p *Publisher) Send(frames ...[]byte) error {
	parts := make([]any, len(frames))
	for i := range frames {
		parts[i] = frames[i]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.socket.SendMessageDontwait(parts...); err != nil {
		return fmt.Errorf("zmqx: publish: %w", err)
	}
	return nil
}

// Close drops what was not sent.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.socket.Close(), removeEndpoint(p.path, p.own))
}
