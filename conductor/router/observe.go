package router

import (
	"net/http"
	"strings"
	"time"
)

// Observer is told how requests go. What is nil is not told; the rest is called by many
// goroutines at a time.
type Observer struct {
	// Sent: a request of a prompt goes to its first engine, so long after all of it had come.
	// That is what the router has added: waiting for a place, token ids, the decision.
	Sent func(added time.Duration)
	// FirstToken: the first bytes of a stream have come, so long after the request began to.
	FirstToken func(took time.Duration)
	// Answered: a request to one of our paths, as Paths has them, was answered with a status,
	// 0 for not at all: its client had gone.
	Answered func(path string, status int)
}

// Observe has an observer told of what comes.
//
// REQUIRES: nothing is served yet.
func (r *Router) Observe(o Observer) { r.observer = o }

func (o *Observer) sent(arrived time.Time) {
	if o.Sent != nil {
		o.Sent(time.Since(arrived))
	}
}

func (o *Observer) firstToken(took time.Duration) {
	if o.FirstToken != nil {
		o.FirstToken(took)
	}
}

// answered has a request answered, and says with what status.
func (o *Observer) answered(by http.Handler, w http.ResponseWriter, in *http.Request) {
	if o.Answered == nil {
		by.ServeHTTP(w, in)
		return
	}
	seen := &statusWriter{ResponseWriter: w}
	defer func() {
		_, path, _ := strings.Cut(in.Pattern, " ")
		if path == "" { // of all methods
			path = in.Pattern
		}
		o.Answered(path, seen.status)
	}()
	by.ServeHTTP(seen, in)
}

// statusWriter remembers an answer's status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is what http.ResponseController looks for.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
