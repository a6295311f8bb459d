package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/jobqueue"
)

// ErrClosed is returned by Serve after Close.
var ErrClosed = errors.New("worker: server closed")

// Server serves engine ranks. It is safe for concurrent use.
type Server struct {
	cfg      Config
	schedule *schedule
	cleaner  *cleaner
	stats    counters
	nextID   atomic.Uint64

	ctx    context.Context // done on Close
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		closed  bool
		conns   map[Conn]struct{}
		engines int
	}
	serving sync.WaitGroup // ServeConn calls
}

// sessionsOfBytes is how many sessions may use their QueueBytes up: an engine of
// eight ranks. More may, but for stores.
const sessionsOfBytes = 8

// New checks the configuration, with defaults filled in. It starts nothing.
func New(cfg Config) (*Server, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, cleaner: newCleaner(cfg.Store, cfg.StoreTimeout, cfg.Log)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.conns = map[Conn]struct{}{}
	s.schedule = newSchedule(jobqueue.Limits{
		Jobs: cfg.QueueJobs, Bytes: cfg.QueueBytes, Loads: cfg.LoadPipelines, LoadPieces: loadPieces, PassedOver: passedOver,
		AllBytes: sessionsOfBytes * cfg.QueueBytes,
	}, cfg.LoadPatience)
	s.stats.loadJobs.times, s.stats.storeJobs.times = cfg.LoadTimes, cfg.StoreTimes
	return s, nil
}

// Serve serves the connections that accept returns until accept fails with
// net.ErrClosed; it then returns ErrClosed if the server was closed, nil
// otherwise. Other errors of accept are logged, and it goes on: a peer that was
// refused is no reason to stop. The connections outlive Serve; Close ends them.
func (s *Server) Serve(accept func() (Conn, error)) error {
	for {
		conn, err := accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			if s.ctx.Err() != nil {
				return ErrClosed
			}
			return nil
		case err != nil:
			s.cfg.Log.Warn("connection refused", "error", err)
			s.stats.refused.Add(1)
			if !s.acceptAgain(err) {
				return fmt.Errorf("worker: accept: %w", err)
			}
			continue
		}
		if err := s.start(conn, func() { s.serve(conn) }); err != nil {
			return err
		}
	}
}

// acceptPause is the wait for descriptors to become free.
const acceptPause = 100 * time.Millisecond

// acceptAgain reports whether the next accept may succeed, after a pause where
// that is needed. A refused peer is no fault of the listener.
func (s *Server) acceptAgain(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || errors.Is(err, syscall.ECONNABORTED) {
		return true
	}
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ENOMEM) {
		return false
	}
	pause(s.ctx, acceptPause)
	return true
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// ServeConn serves one connection and closes it. It returns when the session
// has ended and its memory is unmapped.
func (s *Server) ServeConn(conn Conn) error {
	done := make(chan struct{})
	if err := s.start(conn, func() { defer close(done); s.serve(conn) }); err != nil {
		return err
	}
	<-done
	return nil
}

// start runs serve in a goroutine that Close waits for.
func (s *Server) start(conn Conn, serve func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		_ = conn.Close() // it has seen nothing of us
		return ErrClosed
	}
	s.mu.conns[conn] = struct{}{}
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		defer s.forget(conn)
		serve()
	}()
	return nil
}

func (s *Server) forget(conn Conn) {
	_ = conn.Close() // the session is over either way
	s.mu.Lock()
	delete(s.mu.conns, conn)
	s.mu.Unlock()
}

// crowded reports whether there are more connections than allowed.
func (s *Server) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns) > s.cfg.MaxConns
}

// addEngine counts engine sessions.
func (s *Server) addEngine(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.engines += n
	if s.cfg.OnSessions != nil {
		s.cfg.OnSessions(s.mu.engines)
	}
}

// Engines returns the number of engine sessions.
func (s *Server) Engines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.engines
}

// Close ends all sessions and waits for their pipelines, for the unmapping of
// their memory, and for a last attempt to give back what was taken from the
// store. It does not close the listener or the store, and must not be called
// from OnSessions.
func (s *Server) Close() {
	s.mu.Lock()
	s.mu.closed = true
	for conn := range s.mu.conns {
		_ = conn.Close() // its reader sees the end
	}
	s.mu.Unlock()
	s.cancel()
	s.serving.Wait()
	s.cleaner.close()
}
