package embedded

import (
	"encoding/hex"
	"fmt"
	"io"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// ClientConn is the socket of a store client's session.
type ClientConn interface {
	io.ReadWriter
	WriteFDs(p []byte, fds []int) error
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
// number is the session's, until the connection ends. segmentFD stays the
// caller's.
func (m *Master) ServeClient(conn ClientConn, frames *connector.FrameReader, process ClientProcess, number uint64, segmentFD int) error {
	offer, err := connector.AppendFrame(nil, &connector.Segments{
		Type: connector.TypeSegments, FDs: 1, Segments: []connector.SegmentInfo{m.SegmentInfo()},
	})
	if err != nil {
		return err
	}
	if err := conn.WriteFDs(offer, []int{segmentFD}); err != nil {
		return fmt.Errorf("send segment: %w", err)
	}
	frame, err := frames.Next()
	if err != nil {
		return fmt.Errorf("read declaration: %w", err)
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		return err
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
	done, err := connector.AppendFrame(nil, &connector.Registered{Type: connector.TypeRegistered, StoreReady: true})
	if err != nil {
		return err
	}
	if _, err := conn.Write(done); err != nil {
		return fmt.Errorf("answer declaration: %w", err)
	}
	// Nothing is sent on an open session; the read ends with it.
	if _, err := frames.Next(); err != nil {
		return err
	}
	return fmt.Errorf("store client sent a message on an open session")
}
