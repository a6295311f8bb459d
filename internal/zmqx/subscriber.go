package zmqx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
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
	// greetingTime bounds how long a connection takes to be made and to begin.
	greetingTime = 30 * time.Second
)

// subscriber follows a publisher. It speaks ZeroMQ's protocol itself: libzmq has one thread
// that reads for all sockets, a copy of each message for who takes it, and two threads to wake
// for it, which together cost as much as half of what an indexer does with a message.
type subscriber struct {
	network, address string
	topic            string
	hear             func(frames [][]byte)
	link             func(up bool)
	dialer           net.Dialer

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Subscribe connects to a publisher, ipc or tcp, and follows a topic, "" for all. The
// publisher need not be there yet, and is connected to again when it was lost.
//
// hear is called with each message, whose frames are its own until it returns, and must not
// block: the publisher drops what is not taken in time. link is called with true when a
// connection is made and with false when it is lost. One goroutine calls both. Neither is
// called when Close has returned; Close must not be called from them.
//
// Who breaks the protocol, or sends a message of more than MaxFrameBytes, loses the
// connection.
func (t *Transport) Subscribe(endpoint, topic string, hear func(frames [][]byte), link func(up bool)) (io.Closer, error) {
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &subscriber{
		network: network, address: address, topic: topic, hear: hear, link: link, stop: stop,
		dialer: net.Dialer{Timeout: greetingTime, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepaliveIdle * time.Second, Interval: keepaliveSeconds * time.Second, Count: keepaliveProbes,
		}},
	}
	s.running.Go(func() { s.follow(ctx) })
	return s, nil
}

// parseEndpoint reads an ipc or tcp endpoint. localhost is 127.0.0.1, which is where
// publishers bind.
func parseEndpoint(endpoint string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		return "unix", path, checkPath(path)
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if number, bad := strconv.ParseUint(port, 10, 16); !ok || err != nil || bad != nil || number == 0 || host == "" || host == "*" {
		return "", "", fmt.Errorf("zmqx: %w: %q", ErrBadEndpoint, endpoint)
	}
	if host == "localhost" {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return "tcp", address, nil
}

// follow connects again and again, until ctx ends.
func (s *subscriber) follow(ctx context.Context) {
	wait := firstReconnect
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		s.once(ctx)
		if time.Since(began) > lastReconnect {
			wait = firstReconnect // it had been well
		}
		timer.Reset(wait)
		wait = min(2*wait, lastReconnect)
	}
}

// once hears what a connection brings, to its end.
func (s *subscriber) once(ctx context.Context) {
	conn, err := s.dialer.DialContext(ctx, s.network, s.address)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // which ends what waits for it
	in := intake{conn: conn}
	if err := errors.Join(conn.SetDeadline(time.Now().Add(greetingTime)), in.subscribe(s.topic), conn.SetDeadline(time.Time{})); err != nil || ctx.Err() != nil {
		return
	}
	s.link(true)
	for {
		frames, err := in.message()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.link(false)
			return
		case strings.HasPrefix(string(frames[0]), s.topic):
			s.hear(frames)
		}
	}
}

// Close ends the subscription and waits for hear and link to return.
func (s *subscriber) Close() error {
	s.stop()
	s.running.Wait()
	return nil
}

// reconnecting sets how a connection of libzmq's is made again.
func reconnecting(socket *zmq4.Socket) error {
	return errors.Join(
		socket.SetReconnectIvl(firstReconnect), socket.SetReconnectIvlMax(lastReconnect),
		socket.SetTcpKeepalive(1), socket.SetTcpKeepaliveIdle(keepaliveIdle),
		socket.SetTcpKeepaliveIntvl(keepaliveSeconds), socket.SetTcpKeepaliveCnt(keepaliveProbes),
	)
}

// connect connects a socket of libzmq's to an ipc or tcp endpoint, of localhost to 127.0.0.1.
func connect(socket *zmq4.Socket, endpoint string) error {
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if network == "unix" {
		network = "ipc"
	}
	if err := socket.SetIpv6(strings.Contains(address, "[")); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	if err := socket.Connect(network + "://" + address); err != nil {
		return fmt.Errorf("zmqx: connect %s: %w", endpoint, err)
	}
	return nil
}
