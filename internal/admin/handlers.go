package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strings"
)

// maxBody bounds what a request may carry: a log level.
const maxBody = 64

// handler routes requests. Another method than the route's is answered 405.
func (s *Server) handler(private bool) http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") } // a peer that left needs no answer
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /version", s.version)
	mux.Handle("GET /metrics", s.cfg.Metrics)
	if private {
		s.private(mux)
	}
	return mux
}

// private adds what only the daemon's own user may have.
func (s *Server) private(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	if s.cfg.Level != nil {
		mux.HandleFunc("GET /loglevel", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s.cfg.Level()+"\n") })
		mux.HandleFunc("PUT /loglevel", s.setLevel)
	}
	if s.cfg.Reload != nil {
		mux.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
			report := s.cfg.Reload()
			code := http.StatusOK
			if report.Error != "" {
				code = http.StatusUnprocessableEntity
			}
			writeJSON(w, code, report)
		})
	}
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	verdicts, ready := s.cfg.Ready.Verdicts()
	code := http.StatusOK
	if !ready {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, struct {
		Ready  bool      `json:"ready"`
		Checks []Verdict `json:"checks"`
	}{ready, verdicts})
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{
		"daemon": s.cfg.Daemon, "version": s.cfg.Version, "revision": s.cfg.Revision, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
	})
}

func (s *Server) setLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = s.cfg.SetLevel(strings.TrimSpace(string(body)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(w, s.cfg.Level()+"\n")
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	_ = out.Encode(v) // a peer that left needs no answer
}
