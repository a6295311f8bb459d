package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Discover asks an engine's server, by its address, where it publishes its KV events.
// What wish says of the services goes before what the engine does.
type Discover func(ctx context.Context, engine string, wish contract.Service) ([]contract.Service, error)

// Config is what a Server needs.
type Config struct {
	Index Indexer
	// Discover is what /register asks that names an engine. Nil: that is not offered.
	Discover Discover
	// MaxBodyBytes bounds the body of a call, MaxBusyBytes what all calls under way take
	// for theirs, and for what is made of them; four bodies at least. 0 is the default.
	MaxBodyBytes, MaxBusyBytes int64
	// Answered is told of each call: its path, its status and how long it took. Nil: nobody
	// is.
	Answered func(call string, status int, took time.Duration)
	// Version is what /stats says.
	Version string
	Log     *slog.Logger
}

// Defaults of Config.
const (
	DefaultMaxBodyBytes = 32 << 20
	DefaultMaxBusyBytes = 512 << 20
)

// Server answers the contract's calls. It is safe for concurrent use.
type Server struct {
	cfg   Config
	rooms rooms
	// codec and arrivals are gRPC's.
	codec    *chargingCodec
	arrivals arrivals
	// snapshots: one is being sent. Each takes as much disk as the index has memory.
	snapshots atomic.Bool
}

// New makes a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	if s.cfg.Answered == nil {
		s.cfg.Answered = func(string, int, time.Duration) {}
	}
	s.rooms.maxBody, s.rooms.most = cfg.MaxBodyBytes, cfg.MaxBusyBytes
	if s.rooms.maxBody == 0 {
		s.rooms.maxBody = DefaultMaxBodyBytes
	}
	if s.rooms.most == 0 {
		s.rooms.most = DefaultMaxBusyBytes
	}
	s.rooms.most = max(s.rooms.most, 4*s.rooms.maxBody)
	s.codec = newChargingCodec(&s.rooms)
	s.arrivals.most, s.arrivals.message, s.arrivals.log = s.rooms.most, s.rooms.maxBody, cfg.Log
	return s
}

// Calls are the paths that Register serves.
func Calls() []string {
	return []string{"/register", "/unregister", "/query", "/query_by_hash", "/query_batch", "/services", "/global_view", "/stats", "/snapshot"}
}

// Register adds the calls to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	posts := map[string]func(http.ResponseWriter, *http.Request) error{
		"/register": s.register, "/unregister": s.unregister, "/query": s.query(false), "/query_by_hash": s.query(true), "/query_batch": s.batch,
	}
	gets := map[string]func(http.ResponseWriter, *http.Request) error{
		"/services": s.services, "/global_view": s.view, "/stats": s.stats, "/snapshot": s.snapshot,
	}
	for path, answer := range posts {
		mux.Handle(path, s.call(path, http.MethodPost, answer))
	}
	for path, answer := range gets {
		mux.Handle(path, s.call(path, http.MethodGet, answer))
	}
}

// seen notes the status of an answer.
type seen struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *seen) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *seen) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// call wraps what answers a path.
func (s *Server) call(path, method string, answer func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		began := time.Now()
		w := &seen{out, http.StatusOK}
		defer func() { s.cfg.Answered(path, w.status, time.Since(began)) }()
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			writeFault(w, errorForm(r), http.StatusMethodNotAllowed, Fault{Error: "Method not allowed", Reason: "method_not_allowed"})
			return
		}
		if err := answer(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// reply answers in the form of the call, or in the one that it asks for.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, v any) error {
	if errorForm(r) == formMsgpack {
		packed, err := msgpack.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		writeBody(w, http.StatusOK, msgpackType, packed)
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	writeBody(w, http.StatusOK, "application/json", append(text, '\n'))
	return nil
}
