package lookupd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
)

const (
	// helloTimeout bounds the wait for a peer's first message.
	helloTimeout = 5 * time.Second
	// maxSessions bounds the sessions at a time; a node has some tens of engines.
	maxSessions = 512
	// maxFirstSession keeps session numbers exact in whatever reads them as a
	// floating-point number.
	maxFirstSession = 1 << 52
	// acceptPause keeps a listener that fails over and over (no descriptors left)
	// from spinning.
	acceptPause = 50 * time.Millisecond
)

// Observer takes durations in seconds, as a Prometheus histogram does. Observe
// must cost next to nothing: it is called for each lookup.
type Observer interface{ Observe(seconds float64) }

// EventStream is where the KV events of a namespace are to be had.
type EventStream struct{ Endpoint, Replay, Topic string }

// Config is what a Server needs.
type Config struct {
	// Catalog answers the lookups.
	Catalog Catalog
	// Listen binds lookup sockets.
	Listen ListenFunc
	// Adopt makes lookup channels.
	Adopt AdoptFunc
	// Pulse, if not nil, is what the channels' loops show that they go round.
	Pulse *pulse.Group
	// LeaseTTL is how long a lookup2 keeps its chunks from eviction.
	LeaseTTL time.Duration
	// Welcome is the answer to a hello; Session is filled in.
	Welcome connector.Welcome
	// StoreClient serves a store client that was welcomed, until its session
	// ends; an error other than that is told to the client. Nil: store clients are
	// refused.
	StoreClient func(ctx context.Context, s *Session) error
	// OnBusy, if not nil, is told how many engines and store clients have a
	// session whenever that changes, one call at a time.
	OnBusy func(sessions int)
	// Took, if not nil, is told the time from each lookup's frames to its answer,
	// errors included. Engines call it side by side.
	Took Observer
	// Sampler, if not nil, is shown the chunks of every lookup. Engines call it
	// side by side.
	Sampler Sampler
	// Events, if not nil, tells where the chunks of a namespace are published.
	// Engines call it side by side.
	Events func(*kv.NamespaceSpec) EventStream
	// Log receives what an operator should know.
	Log *slog.Logger
}

// Server holds the sessions and the engines.
type Server struct {
	cfg Config

	mu struct {
		sync.Mutex
		closed   bool
		number   uint64
		sessions map[*Session]struct{}
		engines  map[string]*engine // by lookup path
		retired  modelCounters      // of engines that are gone
	}
	busy struct {
		sync.Mutex
		n int
	}
	refused  sessionCounters
	handlers sync.WaitGroup
}

// New makes a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	// A number of an earlier daemon must not name a session of this one: a call
	// that was meant for that one would be taken for this one's.
	s.mu.number = rand.Uint64N(maxFirstSession)
	s.mu.sessions = map[*Session]struct{}{}
	s.mu.engines = map[string]*engine{}
	s.mu.retired = modelCounters{}
	return s
}

// Serve takes sessions until ctx ends, then closes the listener and the
// sessions and waits for them: their engines are unbound when it returns.
func (s *Server) Serve(ctx context.Context, l Acceptor) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept reports it
	defer stop()
	defer s.handlers.Wait()
	defer s.closeSessions()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			s.handlers.Go(func() { s.handle(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("lookupd: session listener: %w", err)
		default:
			s.refused.refused.Add(1)
			s.cfg.Log.Warn("connection refused", "error", err)
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				pause(ctx, acceptPause)
			}
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// handle serves one connection.
func (s *Server) handle(ctx context.Context, conn Conn) {
	defer func() { _ = conn.Close() }() // its end is not news
	session, err := s.open(conn)
	if err != nil {
		if errors.Is(err, io.EOF) {
			// Somebody looked whether we listen.
			s.cfg.Log.Debug("connection without a hello")
			return
		}
		s.refused.refused.Add(1)
		s.cfg.Log.Warn("session refused", "error", err)
		return
	}
	defer s.forget(session)
	defer session.closeChannel()
	if err := s.converse(ctx, session); err != nil && ctx.Err() == nil {
		s.refused.broken.Add(1)
		s.cfg.Log.Warn("session ended", "session", session.Number, "role", session.Hello.Role, "pid", session.Hello.PID,
			"engine", session.Hello.EngineID, "error", err)
	}
}

// open reads the hello and answers it.
func (s *Server) open(conn Conn) (*Session, error) {
	session, err := s.admit(conn)
	if err != nil {
		return nil, err
	}
	if err := s.greet(session); err != nil {
		session.closeChannel()
		s.forget(session)
		return nil, err
	}
	return session, nil
}

// admit gives a connection its number.
func (s *Server) admit(conn Conn) (*Session, error) {
	s.mu.Lock()
	closed, full := s.mu.closed, len(s.mu.sessions) >= maxSessions
	var session *Session
	if !closed {
		s.mu.number++
		session = newSession(s.mu.number, conn)
		if !full {
			s.mu.sessions[session] = struct{}{}
		}
	}
	s.mu.Unlock()
	switch {
	case closed:
		return nil, errors.New("the daemon is stopping")
	case full:
		return nil, session.Refuse(connector.CodeUnavailable, fmt.Errorf("%d sessions are open, which is the limit", maxSessions))
	}
	return session, nil
}

func (s *Server) greet(session *Session) error {
	if err := session.conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	msg, err := session.Receive()
	if err != nil {
		return errors.Join(fmt.Errorf("no hello: %w", err), session.refuseUnreadable(err))
	}
	hello, ok := msg.(*connector.Hello)
	if !ok {
		return session.unexpected(msg)
	}
	if hello.Protocol != connector.ProtocolVersion {
		return session.Refuse(connector.CodeVersion, fmt.Errorf("protocol version %d, this daemon speaks %d; install one version of mooncake-sidecar",
			hello.Protocol, connector.ProtocolVersion))
	}
	session.Hello = *hello
	switch {
	case hello.Role == connector.RoleSchedulerShim || hello.Role == connector.RoleProbe:
	case hello.Role == connector.RoleStoreClient && s.cfg.StoreClient != nil:
	default:
		return session.Refuse(connector.CodeNotAllowed, fmt.Errorf("%s takes no sessions of role %.32q", s.cfg.Welcome.Daemon, hello.Role))
	}
	if err := session.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	welcome := s.cfg.Welcome
	welcome.Session = session.Number
	return session.Send(&welcome)
}

// converse serves a welcomed session until it ends.
func (s *Server) converse(ctx context.Context, session *Session) error {
	if session.Hello.Role == connector.RoleProbe {
		return serveProbe(session)
	}
	s.addBusy(1)
	defer s.addBusy(-1)
	if session.Hello.Role == connector.RoleStoreClient {
		if err := endOfSession(s.cfg.StoreClient(ctx, session)); err != nil {
			return session.Refuse(connector.CodeNotAllowed, err)
		}
		return nil
	}
	return s.serveEngine(session)
}

// endOfSession turns the ways a session ends when its peer leaves into nil.
func endOfSession(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// serveProbe answers pings.
func serveProbe(session *Session) error {
	for {
		msg, err := session.Receive()
		if err != nil {
			return session.refuseUnreadable(err)
		}
		ping, ok := msg.(*connector.Ping)
		if !ok {
			return session.unexpected(msg)
		}
		if err := session.Send(pong(ping)); err != nil {
			return endOfSession(err)
		}
	}
}

func pong(ping *connector.Ping) *connector.Pong {
	return &connector.Pong{Type: connector.TypePong, Seq: ping.Seq, StoreReady: true}
}

func (s *Server) addBusy(n int) {
	s.busy.Lock()
	defer s.busy.Unlock()
	s.busy.n += n
	if s.cfg.OnBusy != nil {
		s.cfg.OnBusy(s.busy.n)
	}
}

func (s *Server) forget(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.sessions, session)
}

// closeSessions ends all sessions and lets no new one begin.
func (s *Server) closeSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	for session := range s.mu.sessions {
		_ = session.conn.Close() // its reader reports it
	}
}
