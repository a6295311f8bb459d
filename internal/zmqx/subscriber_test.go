package zmqx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

// heard is what a subscription tells a test. Messages beyond its room are lost, as they
// would be with a reader that must not block.
type heard struct {
	messages chan [][]byte
	links    chan bool
}

func subscribeTo(t *testing.T, transport *Transport, endpoint, topic string) heard {
	t.Helper()
	h := heard{make(chan [][]byte, 1024), make(chan bool, 1024)}
	s, err := transport.Subscribe(endpoint, topic, func(frames [][]byte) {
		own := make([][]byte, len(frames))
		for i := range frames {
			own[i] = bytes.Clone(frames[i])
		}
		select {
		case h.messages <- own:
		default:
		}
	}, func(up bool) { h.links <- up })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // the second time it does nothing
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return h
}

func publish(t *testing.T, transport *Transport, endpoint string) *Publisher {
	t.Helper()
	p, err := transport.Publish(endpoint, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sendUntilHeard sends a message again and again until one arrives: nobody says when a
// subscription is in force.
func sendUntilHeard(t *testing.T, p *Publisher, h heard, frames ...[]byte) [][]byte {
	t.Helper()
	for {
		if err := p.Send(frames...); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-h.messages:
			return got
		default:
		}
	}
}

// A subscription begins before its publisher, is told when the connection is lost, and goes
// on with the next one at the same place.
func TestSubscription(t *testing.T) {
	for name, endpoint := range map[string]string{"ipc": "ipc://" + filepath.Join(shortDir(t), "events"), "tcp": fmt.Sprintf("tcp://localhost:%d", freePort(t, "tcp4", "127.0.0.1"))} {
		t.Run(name, func(t *testing.T) {
			transport := newTransport(t)
			h := subscribeTo(t, transport, endpoint, "kv@")
			for life := range 3 {
				p := publish(t, transport, endpoint)
				for !<-h.links { // the loss of one may be told of again
					if life == 0 {
						t.Fatal("the first change is the loss of a connection")
					}
				}
				want := []byte{byte(life)}
				for { // what the one before has sent may come late
					if got := sendUntilHeard(t, p, h, []byte("kv@a"), []byte("12345678"), want); bytes.Equal(got[2], want) {
						break
					}
				}
				if err := p.Send([]byte("other"), nil); err != nil {
					t.Fatal(err)
				}
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				if <-h.links {
					t.Fatal("a connection is made twice")
				}
			}
			for {
				select {
				case got := <-h.messages:
					if string(got[0]) != "kv@a" {
						t.Fatalf("%q was heard", got)
					}
					continue
				default:
				}
				break
			}
		})
	}
}

// A frame that is too long costs its sender the connection, and nobody the memory; what
// has too many frames is left out.
func TestWhatIsTooLargeIsNotHeard(t *testing.T) {
	transport := newTransport(t)
	endpoint := "ipc://" + filepath.Join(shortDir(t), "events")
	p, err := transport.Publish(endpoint, 4) // large ones at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	h := subscribeTo(t, transport, endpoint, "")
	sendUntilHeard(t, p, h, []byte("small"))
	if up := <-h.links; !up {
		t.Fatal("the first change is the loss of a connection")
	}
	many, large := bytes.Split(make([]byte, MaxFrames), []byte{0}), make([]byte, MaxFrameBytes+1)
	for lost := false; !lost; { // the queue may be full of small ones
		if err := errors.Join(p.Send(many...), p.Send([]byte("large"), large)); err != nil {
			t.Fatal(err)
		}
		select {
		case up := <-h.links:
			if lost = !up; up {
				t.Fatal("a connection is made twice")
			}
		case <-h.messages:
		case <-time.After(10 * time.Millisecond): // libzmq hears late that there is room again
		}
	}
	for len(h.messages) > 0 {
		if got := <-h.messages; string(got[0]) != "small" {
			t.Errorf("%d frames, %q", len(got), got[0])
		}
	}
	sendUntilHeard(t, p, subscribeTo(t, transport, endpoint, ""), []byte("again"))
}

// Whoever listens there and is no publisher is not listened to.
func TestForeignPeer(t *testing.T) {
	transport := newTransport(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := subscribeTo(t, transport, "tcp://"+l.Addr().String(), "")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 1000)); err != nil {
		t.Log(err) // it hung up
	}
	if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil { // its greeting
		t.Log(err)
	}
	conn.Close()
	select {
	case up := <-h.links:
		if up {
			t.Error("a web server was taken for a publisher")
		}
	case got := <-h.messages:
		t.Errorf("%q was heard", got)
	default:
	}
}

func TestEndpointsThatCantBe(t *testing.T) {
	transport := newTransport(t)
	for _, endpoint := range []string{"", "tcp://", "tcp://127.0.0.1", "tcp://*:1", "ipc://relative", "udp://127.0.0.1:1"} {
		if s, err := transport.Subscribe(endpoint, "", nil, nil); err == nil {
			t.Errorf("%q: %v", endpoint, s.Close())
		}
		if a, err := transport.Ask(endpoint, [][]byte{{}}, nil); err == nil {
			t.Errorf("%q: %v", endpoint, a.Close())
		}
	}
}

// Answers beyond what waits in the queues come when there is room.
func TestAnswers(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "replay")
	const answers = 10_000
	r, err := transport.ListenStream("ipc://"+path, answers, func(frames [][]byte, reply func([][]byte) bool) {
		for i := range answers {
			if !reply([][]byte{frames[0], {byte(i >> 8), byte(i)}}) {
				t.Errorf("answer %d was refused", i)
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	got := make(chan [][]byte) // without room: each waits for its reader
	gone := make(chan struct{})
	a, err := transport.Ask("ipc://"+path, [][]byte{{}, []byte("all")}, func(frames [][]byte) {
		select {
		case got <- frames:
		case <-gone:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range answers - 1 {
		if frames := <-got; len(frames) != 3 || string(frames[1]) != "all" || int(frames[2][0])<<8|int(frames[2][1]) != i {
			t.Fatalf("answer %d: %q", i, frames)
		}
	}
	close(gone) // as of a reader that is gone
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// Idle subscriptions are goroutines, not threads.
func TestSubscriptionsHoldNoThreads(t *testing.T) {
	transport := newTransport(t)
	endpoint := "ipc://" + filepath.Join(shortDir(t), "events")
	p := publish(t, transport, endpoint)
	t.Cleanup(func() { _ = p.Close() })
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Skip(err)
		}
		return len(tasks)
	}
	before := threads()
	const many = 200
	for range many {
		h := subscribeTo(t, transport, endpoint, "")
		if !<-h.links {
			t.Fatal("no connection")
		}
	}
	if after := threads(); after-before > many/4 {
		t.Errorf("%d subscriptions made %d threads of %d", many, after, before)
	}
}

// The number of sockets is the transport's option.
func TestSockets(t *testing.T) {
	transport, err := NewWith(Options{Sockets: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() })
	for range 2 {
		socket, err := transport.newSocket(zmq4.DEALER)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = socket.Close() })
	}
	if a, err := transport.Ask("tcp://127.0.0.1:1", [][]byte{{}}, nil); err == nil {
		t.Errorf("a third one: %v", a.Close())
	}
}
