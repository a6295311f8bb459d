package worker

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// daemonName is what a welcome says.
const daemonName = "mooncake-worker"

// serve has one conversation, whatever the peer's role.
func (s *Server) serve(conn Conn) {
	c := newConversation(conn)
	id := s.nextID.Add(1)
	err := s.converse(c, id)
	if err != nil && !isEnd(err) {
		s.cfg.Log.Warn("session ended", "session", id, "pid", conn.PeerPID(), "error", err)
		return
	}
	s.cfg.Log.Debug("session ended", "session", id, "pid", conn.PeerPID())
}

func (s *Server) converse(c *conversation, id uint64) error {
	if s.crowded() {
		s.stats.refused.Add(1)
		return c.refuse(connector.CodeUnavailable, fmt.Errorf("more than %d connections", s.cfg.MaxConns))
	}
	hello, err := c.hello(s.cfg.HelloTimeout)
	if err != nil {
		return s.complain(c, err)
	}
	// What a new lookupd takes up has been the same in all protocols: an upgrade of
	// the daemons costs nobody the store.
	if hello.Protocol != connector.ProtocolVersion && hello.Role != connector.RoleRecovery {
		return c.refuse(connector.CodeVersion, fmt.Errorf("protocol %d, this %s speaks %d; use one version of both",
			hello.Protocol, daemonName, connector.ProtocolVersion))
	}
	var talk func(*conversation, *connector.Hello, uint64) error
	switch hello.Role {
	case connector.RoleWorkerShim:
		talk = s.serveEngine
	case connector.RoleRecovery:
		talk = s.serveRecovery
	case connector.RoleProbe:
		talk = s.serveProbe
	default:
		return c.refuse(connector.CodeNotAllowed, fmt.Errorf("the role %.32q is not served by %s", hello.Role, daemonName))
	}
	if err := c.send(&connector.Welcome{
		Type: connector.TypeWelcome, Protocol: connector.ProtocolVersion, Daemon: daemonName,
		Version: s.cfg.Version, PID: s.cfg.PID, Session: id, Autostarted: s.cfg.Autostarted,
	}); err != nil {
		return err
	}
	return talk(c, hello, id)
}

// complain answers what could not be read or was not due, which ends the
// session. It returns the error.
func (s *Server) complain(c *conversation, err error) error {
	var bad *connector.MalformedError
	switch {
	case isEnd(err):
		return err
	case errors.As(err, &bad):
		s.stats.malformed.Add(1)
		// Without the job: the session ends.
		return c.refuse(connector.CodeMalformed, bad)
	case errors.Is(err, connector.ErrFrameTooLong):
		s.stats.malformed.Add(1)
		return c.refuse(connector.CodeMalformed, err)
	case errors.Is(err, errOutOfOrder):
		s.stats.malformed.Add(1)
		return c.refuse(connector.CodeNotAllowed, err)
	case errors.Is(err, errBadDescriptor):
		return c.refuse(connector.CodeBadDescriptor, err)
	}
	return err // the connection failed
}

// serveProbe answers pings.
func (s *Server) serveProbe(c *conversation, _ *connector.Hello, _ uint64) error {
	for {
		msg, fds, err := c.receive()
		if err != nil {
			return s.complain(c, err)
		}
		closeFDs(fds)
		ping, ok := msg.(*connector.Ping)
		if !ok {
			return s.complain(c, fmt.Errorf("%w: %T from a probe", errOutOfOrder, msg))
		}
		if err := s.pong(c, ping); err != nil {
			return err
		}
	}
}

func (s *Server) pong(c *conversation, ping *connector.Ping) error {
	return c.send(&connector.Pong{Type: connector.TypePong, Seq: ping.Seq, StoreReady: s.cfg.StoreReady()})
}

// serveRecovery hands the store's segments to a new mooncake-lookupd.
func (s *Server) serveRecovery(c *conversation, _ *connector.Hello, _ uint64) error {
	send := func(infos []connector.SegmentInfo, fds []int) error {
		return c.sendFDs(&connector.Segments{Type: connector.TypeSegments, FDs: len(fds), Segments: infos}, fds)
	}
	if s.cfg.KeptSegments == nil {
		return send(nil, nil)
	}
	return s.cfg.KeptSegments(send)
}

// storeContext bounds one call to the store. A call is not cut short because its
// job or its session is: to the store, a call that ends without an answer is a
// broken session, and all ranks share the one.
func (s *Server) storeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, s.cfg.StoreTimeout)
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = syscall.Close(fd) // Linux frees the number whatever it says
		}
	}
}
