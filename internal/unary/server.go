package unary

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxConnections bounds the connections of all peers together.
const maxConnections = 1024

// acceptPause keeps a listener that fails over and over from spinning.
const acceptPause = 50 * time.Millisecond

// Server answers calls. A connection's calls are answered one after the other.
type Server struct {
	methods map[string]method
	limit   int

	mu     sync.Mutex
	l      net.Listener
	conns  map[net.Conn]struct{}
	closed bool
	served sync.WaitGroup
}

type method struct {
	service any
	handle  grpc.MethodHandler
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer returns a server that takes requests of up to limit bytes.
func NewServer(limit int) *Server {
	return &Server{methods: map[string]method{}, limit: limit, conns: map[net.Conn]struct{}{}}
}

// RegisterService implements grpc.ServiceRegistrar, for the unary methods.
//
// REQUIRES: before Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	for _, m := range desc.Methods {
		s.methods["/"+desc.ServiceName+"/"+m.MethodName] = method{service, m.Handler}
	}
}

// Serve takes connections until Stop; then it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.l = l
	closed := s.closed
	s.mu.Unlock()
	defer l.Close() //nolint:errcheck // Stop has closed it, or its error is returned
	for !closed {
		conn, err := l.Accept()
		switch {
		case err == nil:
			s.begin(conn)
		case s.stopped():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			time.Sleep(acceptPause) // no descriptors left, for example
		}
	}
	return nil
}

// begin serves a connection, unless there are too many or the server stops.
func (s *Server) begin(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxConnections {
		_ = conn.Close() // nothing was said on it
		return
	}
	s.conns[conn] = struct{}{}
	s.served.Go(func() {
		defer s.end(conn)
		s.serve(conn)
	})
}

func (s *Server) end(conn net.Conn) {
	_ = conn.Close() // its end is not news
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *Server) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Stop takes no more calls, gives those under way that long to be answered, and
// waits for the connections to end.
func (s *Server) Stop(grace time.Duration) {
	s.mu.Lock()
	s.closed = true
	if s.l != nil {
		_ = s.l.Close() // Serve reports it
	}
	now := time.Now()
	for conn := range s.conns {
		// A read ends at once, a reply may still be written.
		_ = errors.Join(conn.SetReadDeadline(now), conn.SetWriteDeadline(now.Add(grace)))
	}
	s.mu.Unlock()
	s.served.Wait()
}

// serve answers a connection's calls until it ends. A peer that sends what is no
// request is sent away with an error.
func (s *Server) serve(conn net.Conn) {
	var in, out []byte
	for {
		body, err := readFrame(conn, in, s.limit)
		if err == nil {
			out, err = s.answer(out[:0], body)
			in = kept(body)
		}
		if err != nil {
			if errors.Is(err, errTooLong) || errors.Is(err, errMalformed) {
				_, _ = conn.Write(appendError(nil, codes.InvalidArgument, err.Error())) // it may be gone
			}
			return
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
		out = kept(out)
	}
}

// answer appends the reply to a request's body.
func (s *Server) answer(out, body []byte) ([]byte, error) {
	name, args, err := splitRequest(body)
	if err != nil {
		return out, err
	}
	m, ok := s.methods[string(name)]
	if !ok {
		return appendError(out, codes.Unimplemented, fmt.Sprintf("unknown method %.64q", name)), nil
	}
	decode := func(into any) error {
		message, ok := into.(proto.Message)
		if !ok {
			return status.Errorf(codes.Internal, "BUG: request of %T", into)
		}
		if err := proto.Unmarshal(args, message); err != nil {
			return status.Errorf(codes.InvalidArgument, "%s: %v", name, err)
		}
		return nil
	}
	reply, err := m.handle(m.service, context.Background(), decode, nil)
	if err == nil {
		message, ok := reply.(proto.Message)
		if !ok {
			return appendError(out, codes.Internal, fmt.Sprintf("BUG: reply of %T", reply)), nil
		}
		var encoded []byte
		if encoded, err = appendReply(out, message); err == nil {
			return encoded, nil
		}
	}
	st := status.Convert(err)
	return appendError(out, st.Code(), st.Message()), nil
}
