package indexer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// What publishers send is what libzmq takes for a publisher's: in order, with numbers, and
// with heartbeats in between.
func TestPublishers(t *testing.T) {
	p, err := newPublishers(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	subscribers := make([]*zmq4.Socket, 2)
	for i := range subscribers {
		s, err := zmq4.NewSocket(zmq4.SUB)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if err := errors.Join(s.SetRcvhwm(0), s.SetHeartbeatIvl(time.Millisecond), s.SetHeartbeatTimeout(time.Minute), s.SetSubscribe(""), s.Connect(p.endpoints[i])); err != nil {
			t.Fatal(err)
		}
		subscribers[i] = s
	}
	if err := p.subscribed(t.Context()); err != nil {
		t.Fatal(err)
	}
	const each = 300
	large := bytes.Repeat([]byte("payload "), 4<<10)
	go func() {
		for range each {
			batches := []workload.Batch{{Engine: 1, Payload: large}, {Engine: 1, Payload: []byte{}}, {Engine: 0, Payload: []byte("x")}}
			if err := p.send(batches); err != nil {
				t.Error(err)
			}
		}
	}()
	for i, s := range subscribers {
		for n := range uint64(each * (i + 1)) {
			frames, err := s.RecvMessageBytes(0)
			if err != nil {
				t.Fatal(err)
			}
			want := []byte("x")
			if i == 1 {
				want = large[:len(large)*int(1-n%2)]
			}
			if len(frames) != 3 || len(frames[0]) != 0 || binary.BigEndian.Uint64(frames[1]) != n || !bytes.Equal(frames[2], want) {
				t.Fatalf("engine %d, message %d: %.60q", i, n, frames)
			}
		}
	}
}

// Who speaks another protocol is no subscriber.
func TestNoSubscriber(t *testing.T) {
	var answers bytes.Buffer
	if err := greet(&struct {
		*strings.Reader
		*writer
	}{strings.NewReader(strings.Repeat("GET / HTTP/1.1\r\n", 10)), &writer{&answers}}); err == nil {
		t.Error("a browser is taken for a subscriber")
	}
}

type writer struct{ to *bytes.Buffer }

func (w *writer) Write(p []byte) (int, error) { return w.to.Write(p) }
