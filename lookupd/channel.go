package lookupd

import (
	"bufio"
	"fmt"

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
	go c.serve(newHandler(s.cfg, e), s.cfg.Pulse.Join())
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
func (c *channel) serve(h *handler, loop *pulse.Loop) {
	defer close(c.done)
	defer loop.Leave()
	defer func() { _ = c.stream.Close() }() // the engine's end is what counts
	messages := connector.NewFrameReader(bufio.NewReaderSize(c.stream, channelBufferBytes))
	var (
		message []byte
		frames  [][]byte
		out     []byte
		err     error
	)
	next := func() { message, err = messages.Next() }
	for {
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
			if err != nil {
				h.finish()
				return
			}
		}
		h.finish()
	}
}
