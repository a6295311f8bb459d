package standin

import (
	"errors"
	"io"
	"net/http"
)

// Transport carries requests to a handler in this process.
type Transport struct {
	Handler http.Handler
}

// RoundTrip implements http.RoundTripper. The handler's context ends with the
// request's; a handler that panics with http.ErrAbortHandler breaks the stream.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, stream := io.Pipe()
	w := &writer{header: http.Header{}, stream: stream, began: make(chan struct{})}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			p := recover()
			if p == nil {
				w.WriteHeader(http.StatusOK)
				_ = stream.Close() // never fails
				return
			}
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			w.failed = w.status == 0
			w.WriteHeader(http.StatusOK)
			stream.CloseWithError(io.ErrUnexpectedEOF)
		}()
		t.Handler.ServeHTTP(w, r)
	}()
	select {
	case <-w.began:
	case <-r.Context().Done():
		body.CloseWithError(r.Context().Err())
		<-done
		return nil, r.Context().Err()
	}
	if w.failed {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: w.status, Header: w.header.Clone(), Body: &cancelled{ReadCloser: body, request: r, done: done}, Request: r}, nil
}

// writer is a response on its way.
type writer struct {
	header http.Header
	stream *io.PipeWriter
	status int
	failed bool
	began  chan struct{}
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		close(w.began)
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.stream.Write(b)
}

// Flush implements http.Flusher; nothing is buffered.
func (w *writer) Flush() {}

// cancelled is a body whose reads end with the request's context.
type cancelled struct {
	io.ReadCloser
	request *http.Request
	done    chan struct{}
}

func (c *cancelled) Read(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	if err := c.request.Context().Err(); err != nil {
		return 0, err
	}
	read := make(chan result, 1)
	go func() {
		n, err := c.ReadCloser.Read(b)
		read <- result{n, err}
	}()
	select {
	case r := <-read:
		return r.n, r.err
	case <-c.request.Context().Done():
		_ = c.ReadCloser.Close() // ends the read below
		<-read
		return 0, c.request.Context().Err()
	}
}

// Close ends the handler's writes and waits for it.
func (c *cancelled) Close() error {
	err := c.ReadCloser.Close()
	<-c.done
	return err
}
