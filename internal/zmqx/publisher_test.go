package zmqx

import (
	"path/filepath"
	"testing"

	"github.com/pebbe/zmq4"
)

func subscribe(t *testing.T, transport *Transport, endpoint string) *zmq4.Socket {
	t.Helper()
	socket, err := transport.newSocket(zmq4.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	if err := socket.SetSubscribe("t"); err != nil {
		t.Fatal(err)
	}
	if err := socket.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	if err := socket.SetRcvtimeo(patience); err != nil {
		t.Fatal(err)
	}
	return socket
}

// A subscriber that never reads loses messages; the publisher and the other one do
// not notice.
func TestPublisherWaitsForNobody(t *testing.T) {
	transport := newTransport(t)
	endpoint := "ipc://" + filepath.Join(shortDir(t), "events")
	p, err := transport.Publish(endpoint, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	dead, alive := subscribe(t, transport, endpoint), subscribe(t, transport, endpoint)
	_ = dead // it never reads
	payload := make([]byte, 64<<10)
	heard := make(chan error)
	go func() {
		_, err := alive.RecvMessageBytes(0)
		heard <- err
	}()
	for sent := 0; ; sent++ { // far more than any queue holds, and until the subscription is in force
		if err := p.Send([]byte("topic"), payload); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-heard:
			if err != nil {
				t.Fatal(err)
			}
			heard = nil
		default:
		}
		if heard == nil && sent > 20_000 {
			return
		}
	}
}

func TestStreamedReplies(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "replay")
	refused := make(chan int, 1)
	r, err := transport.ListenStream("ipc://"+path, 100, func(frames [][]byte, reply func([][]byte) bool) {
		for i := range int(frames[0][0]) {
			if !reply([][]byte{{byte(i)}}) {
				refused <- i
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	socket, err := transport.newSocket(zmq4.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	if err := socket.Connect("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.SendMessage("", []byte{90}); err != nil {
		t.Fatal(err)
	}
	for i := range 90 {
		got, err := socket.RecvMessageBytes(0)
		if err != nil || len(got) != 2 || got[1][0] != byte(i) {
			t.Fatalf("reply %d: %v, %v", i, got, err)
		}
	}
	select {
	case i := <-refused:
		t.Errorf("reply %d was refused", i)
	default:
	}
	if _, err := transport.ListenStream("ipc://"+path, 1, nil); err == nil {
		t.Error("an endpoint in use was taken")
	}
}
