package embedded

import (
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// Conversation is a store client's session, message by message.
type Conversation interface {
	// Send writes a message with descriptors, which stay the caller's.
	Send(msg any, fds ...int) error
	// Receive returns the next message; an error is the session's end.
	Receive() (any, error)
	// Close ends the session: Receive returns.
	Close()
}

// ClientProcess is the process at the other end, as the kernel says it.
type ClientProcess struct {
	PID   uint32
	Start uint64
}

// SegmentInfo describes the segment for its clients.
func (m *Master) SegmentInfo() connector.SegmentInfo {
	l := m.Layout()
	return connector.SegmentInfo{UUID: hex.EncodeToString(l.UUID[:]), Bytes: l.FileBytes, DataOffset: l.DataOffset}
}

// ServeClient runs a store client's session from after its welcome, of which
// number is the session's, until it ends. segmentFD stays the
// caller's.
func (m *Master) ServeClient(talk Conversation, process ClientProcess, number uint64, segmentFD int) error {
	offer := &connector.Segments{Type: connector.TypeSegments, FDs: 1, Segments: []connector.SegmentInfo{m.SegmentInfo()}}
	if err := talk.Send(offer, segmentFD); err != nil {
		return fmt.Errorf("send segment: %w", err)
	}
	msg, err := talk.Receive()
	if err != nil {
		return fmt.Errorf("receive declaration: %w", err)
	}
	declared, ok := msg.(*connector.Declare)
	if !ok {
		return fmt.Errorf("store client sent %T, want a declaration", msg)
	}
	if declared.UUID != m.SegmentInfo().UUID {
		return fmt.Errorf("declaration for segment %q, this store has %q", declared.UUID, m.SegmentInfo().UUID)
	}
	session := Session{Client: declared.Client, Number: number}
	err = m.OpenSession(session, process.PID, process.Start, Declaration{Reads: declared.Reads, Puts: declared.Puts})
	if err != nil {
		return err
	}
	defer m.SessionLost(session)
	if err := talk.Send(&connector.Registered{Type: connector.TypeRegistered, StoreReady: true, Offers: true}); err != nil {
		return fmt.Errorf("answer declaration: %w", err)
	}
	return m.converse(talk, session)
}

// converse serves an open session until it ends.
func (m *Master) converse(talk Conversation, session Session) error {
	offers := make(chan *connector.Offer, queuedOffers)
	var telling sync.WaitGroup
	telling.Go(func() {
		for offer := range offers {
			if talk.Send(offer) != nil {
				talk.Close() // what was sent may be a part; Receive reports it
			}
		}
	})
	defer telling.Wait()
	defer close(offers)
	defer m.unfollow(session.Client, offers)
	for {
		msg, err := talk.Receive()
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *connector.Follow:
			err = m.follow(session, msg, offers)
		case *connector.Decline:
			err = m.decline(session, msg.Refs)
		default:
			err = fmt.Errorf("store client sent %T on an open session", msg)
		}
		if err != nil {
			return err
		}
	}
}
