package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 90 * time.Second // a CPU profile takes 30 s unless asked for less
	idleTimeout    = 60 * time.Second
	stopTimeout    = time.Second
	maxHeaderBytes = 8 << 10
	// maxConnections bounds those of one listener; others wait to be accepted.
	maxConnections = 64
)

// Config is what a Server needs.
type Config struct {
	// Daemon and Version are what /version says, with Revision.
	Daemon, Version, Revision string
	// Ready are the checks of /readyz.
	Ready *Readiness
	// Metrics answers /metrics.
	Metrics http.Handler
	// Level and SetLevel are for /loglevel. Nil: it is not there.
	Level    func() string
	SetLevel func(level string) error
	// Reload reads the configuration again. Nil: it is not there.
	Reload func() Reloaded
	Log    *slog.Logger
}

// Reloaded says what reading the configuration again did.
type Reloaded struct {
	// Applied and Ignored list changed settings, "log_level: info -> debug"; the
	// ignored ones take effect at the next start.
	Applied []string `json:"applied"`
	Ignored []string `json:"ignored"`
	// Error says why nothing was changed.
	Error string `json:"error,omitempty"`
}

// Server answers HTTP. It is safe for concurrent use.
type Server struct {
	cfg     Config
	mu      sync.Mutex
	servers []*http.Server
	serving sync.WaitGroup
	// answering are the requests under way: what they read must outlast them.
	answering sync.WaitGroup
}

// New makes a server, which serves nothing yet.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Serve answers on a listener, which it takes over, until Close; private is for
// a listener that only the daemon's own user can reach. failed is told when the
// listener fails.
func (s *Server) Serve(l net.Listener, private bool, failed func(error)) {
	server := &http.Server{
		Handler:           s.counted(s.handler(private)),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	s.mu.Lock()
	s.servers = append(s.servers, server)
	s.mu.Unlock()
	s.serving.Go(func() {
		if err := server.Serve(newLimited(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("http on %s: %w", l.Addr(), err))
		}
	})
}

// Handler answers what a listener does that others reach, for who serves it at an address
// of its own. Close does not wait for it.
func (s *Server) Handler() http.Handler { return s.handler(false) }

// counted lets Close wait for the requests under way.
func (s *Server) counted(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.answering.Add(1)
		defer s.answering.Done()
		handler.ServeHTTP(w, r)
	})
}

// Close ends the listeners, lets answers under way finish within a second, tells
// the rest to end, and waits. It may be called again.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	s.mu.Lock()
	servers := s.servers
	s.mu.Unlock()
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close() // a profile, say, goes on no longer
		}
	}
	s.serving.Wait()
	s.answering.Wait()
}
