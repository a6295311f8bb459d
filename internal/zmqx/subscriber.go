package zmqx

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"
)

// A publisher that can't be reached is tried again after these times. One whose machine is
// gone without a word is noticed by the kernel's probes.
const (
	firstReconnect   = 100 * time.Millisecond
	lastReconnect    = 5 * time.Second
	keepaliveIdle    = 30 // seconds, as the other two
	keepaliveSeconds = 10
	keepaliveProbes  = 3
)

// subscriber follows a publisher.
type subscriber struct {
	socket, monitor   *zmq4.Socket
	messages, changes *waiter
	malformed         atomic.Uint64
	running           sync.WaitGroup
	closing           sync.Once
	err               error
}

// Subscribe connects to a publisher, ipc or tcp, and follows a topic, "" for all. The
// publisher need not be there yet; libzmq connects, and connects again.
//
// hear is called with each message, whose frames are its own, by one goroutine, and must not
// block: what it does not take in time is lost with the publisher. link is called by
// another one, with true when a connection is made and with false when it is lost. Neither
// is called when Close has returned; Close must not be called from them.
//
// libzmq does not connect again to a peer that broke the protocol, or sent a frame of more
// than MaxFrameBytes: where a link stays down, subscribe anew now and then.
func (t *Transport) Subscribe(endpoint, topic string, hear func(frames [][]byte), link func(up bool)) (io.Closer, error) {
	s := &subscriber{}
	if err := s.open(t, endpoint, topic); err != nil {
		return nil, errors.Join(err, s.release())
	}
	s.running.Go(func() { s.follow(hear) })
	s.running.Go(func() { s.watch(link) })
	return s, nil
}

func (s *subscriber) open(t *Transport, endpoint, topic string) (err error) {
	if s.socket, err = t.newSocket(zmq4.SUB); err != nil {
		return err
	}
	if err := errors.Join(reconnecting(s.socket), s.socket.SetSubscribe(topic)); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	if s.monitor, err = t.newSocket(zmq4.PAIR); err != nil {
		return err
	}
	// Each change counts: none may be left out for want of room in a queue.
	if err := s.monitor.SetRcvhwm(0); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	changes := "inproc://link-" + strconv.FormatUint(t.names.Add(1), 10)
	if err := errors.Join(s.socket.Monitor(changes, zmq4.EVENT_HANDSHAKE_SUCCEEDED|zmq4.EVENT_DISCONNECTED), s.monitor.Connect(changes)); err != nil {
		return fmt.Errorf("zmqx: watch a connection: %w", err)
	}
	if s.messages, err = newWaiter(s.socket); err != nil {
		return err
	}
	if s.changes, err = newWaiter(s.monitor); err != nil {
		return err
	}
	return connect(s.socket, endpoint)
}

// reconnecting sets how a connection is made again.
func reconnecting(socket *zmq4.Socket) error {
	return errors.Join(
		socket.SetReconnectIvl(firstReconnect), socket.SetReconnectIvlMax(lastReconnect),
		socket.SetTcpKeepalive(1), socket.SetTcpKeepaliveIdle(keepaliveIdle),
		socket.SetTcpKeepaliveIntvl(keepaliveSeconds), socket.SetTcpKeepaliveCnt(keepaliveProbes),
	)
}

// connect connects to an ipc or tcp endpoint, of localhost to 127.0.0.1, which is where
// publishers bind.
func connect(socket *zmq4.Socket, endpoint string) error {
	path, isPath := strings.CutPrefix(endpoint, "ipc://")
	if isPath {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	address := endpoint
	if port, ok := strings.CutPrefix(endpoint, "tcp://localhost:"); ok {
		address = "tcp://127.0.0.1:" + port
	}
	if err := socket.SetIpv6(strings.Contains(address, "[")); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	if err := socket.Connect(address); err != nil {
		return fmt.Errorf("zmqx: connect %s: %w", endpoint, err)
	}
	return nil
}

// follow owns the socket until it is told to stop.
func (s *subscriber) follow(hear func(frames [][]byte)) {
	for {
		if err := s.messages.wait(); err != nil {
			return
		}
		if err := s.messages.drain(hear, &s.malformed); err != nil {
			return
		}
	}
}

// watch owns the monitor until it is told to stop.
func (s *subscriber) watch(link func(up bool)) {
	for {
		if err := s.changes.wait(); err != nil {
			return
		}
		event, _, _, err := s.monitor.RecvEvent(zmq4.DONTWAIT)
		if err != nil {
			continue // wait says whether that is for good
		}
		link(event == zmq4.EVENT_HANDSHAKE_SUCCEEDED)
	}
}

// Close ends the subscription and waits for hear and link to return.
func (s *subscriber) Close() error {
	s.closing.Do(func() {
		s.messages.stop()
		s.changes.stop()
		s.running.Wait()
		s.err = s.release()
	})
	return s.err
}

func (s *subscriber) release() error {
	return errors.Join(closeWaiters(s.messages, s.changes), closeAll(s.socket, s.monitor))
}

func closeWaiters(waiters ...*waiter) error {
	var errs []error
	for _, w := range waiters {
		if w != nil {
			errs = append(errs, w.close())
		}
	}
	return errors.Join(errs...)
}

func closeAll(sockets ...*zmq4.Socket) error {
	var errs []error
	for _, socket := range sockets {
		if socket != nil {
			errs = append(errs, socket.Close())
		}
	}
	return errors.Join(errs...)
}
