package lookupd

import (
	"bufio"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

// channelBufferBytes is what one read of a channel takes: most lookups whole.
const channelBufferBytes = 32 << 10

// channel is an engine's own way to ask: a stream socket between it and one
// goroutine here, without the threads that stand at both ends of a ZeroMQ socket.
// It takes the same requests, in order, and each answer is the same bytes; a
// release and a seen have no answer.
type channel struct {
	stream Channel
	done   chan struct{}
}

// openChannel begins to answer on the descriptor that the engine has just sent.
// An earlier channel ends: the engine has given it up.
func (s *Server) openChannel(e *engine) error {
	stream, err := s.cfg.Adopt(e.session.takeChannel())
	if err != nil {
		return fmt.Errorf("lookup channel: %w", err)
	}
	e.channel.end()
	c := &channel{stream: stream, done: make(chan struct{})}
	e.channel = c
	go c.serve(newHandler(s.cfg, e), s.cfg.Pulse)
	return nil
}

// unanswered tells whether a request has no answer on a channel.
func unanswered(tag []byte) bool {
	return string(tag) == wire.TagRelease || string(tag) == wire.TagSeen
}

// end ends the channel after the request at hand.
func (c *channel) end() {
	if c == nil {
		return
	}
	_ = c.stream.Close() // serve reports nothing either
	<-c.done
}

// serve answers until the stream ends or makes no sense. The engine notices that
// and opens another.
func (c *channel) serve(h *handler, group *pulse.Group) {
	loop := group.Join()
	defer close(c.done)
	defer loop.Leave()
	defer func() { _ = c.stream.Close() }() // the engine's end is what counts
	debts := startDebtor(h, group.Join())
	defer debts.end()
	incoming := bufio.NewReaderSize(c.stream, channelBufferBytes)
	messages := connector.NewFrameReader(incoming)
	var (
		message []byte
		frames  [][]byte
		out     []byte
		err     error
	)
	arrival := func() { _, err = incoming.Peek(1) }
	next := func() { message, err = messages.Next() }
	for {
		loop.Await(arrival)
		debts.settle() // until then the message before is in use
		if err != nil {
			return
		}
		if loop.Await(next); err != nil {
			return
		}
		if frames, err = wire.SplitMessage(frames[:0], message); err != nil {
			h.fail(ReasonMalformed, err)
			return
		}
		reply := h.answer(frames)
		if len(frames) == 0 || !unanswered(frames[0]) {
			out = wire.AppendMessage(out[:0], reply)
			// An engine that is stopped does not read. That is no fault of ours.
			loop.Await(func() { _, err = c.stream.Write(out) })
		}
		if h.owes() {
			debts.begin(h.owesMuch())
		}
		if err != nil {
			return
		}
	}
}

// headStart is how long what an answer owes waits for whoever it has woken, if it is much. The kernel lets that
// one run where we do, for who sends an answer mostly goes to sleep next; if we go on instead, an engine waits until
// 8,192 leases are granted (1 to 2 ms). Little is done at once: workers are offered what was leased, and a load will
// come soon. (The runtime's timers wait a millisecond at least where all sleeps.)
const headStart = 100 * time.Microsecond

// debtor does what answers owe, beside the channel.
//
// INVARIANT: between begin and settle the handler and its request are the debtor's.
type debtor struct {
	due   chan bool // with a head start
	hurry chan struct{}
	paid  chan struct{} // has room for one
	owing bool
}

func startDebtor(h *handler, loop *pulse.Loop) *debtor {
	d := &debtor{due: make(chan bool), hurry: make(chan struct{}, 1), paid: make(chan struct{}, 1)}
	go d.pay(h, loop)
	return d
}

func (d *debtor) pay(h *handler, loop *pulse.Loop) {
	defer close(d.paid)
	defer loop.Leave()
	start := time.NewTimer(headStart)
	defer start.Stop()
	wait, more := false, false
	next := func() { wait, more = <-d.due }
	for {
		if loop.Await(next); !more {
			return
		}
		if wait {
			start.Reset(headStart)
			select {
			case <-start.C:
			case <-d.hurry:
			}
		}
		h.finish()
		d.paid <- struct{}{}
	}
}

func (d *debtor) begin(wait bool) {
	d.due <- wait
	d.owing = true
}

// settle returns when what was begun is done.
func (d *debtor) settle() {
	if !d.owing {
		return
	}
	select {
	case d.hurry <- struct{}{}:
	default:
	}
	<-d.paid
	select {
	case <-d.hurry: // it was not needed
	default:
	}
	d.owing = false
}

// end settles, and ends the debtor.
func (d *debtor) end() {
	d.settle()
	close(d.due)
	<-d.paid
}
