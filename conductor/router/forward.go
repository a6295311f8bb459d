package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// NewTransport returns what requests to engines go over. Connections are kept for a
// little less than engines keep theirs, so that none is closed under a request.
func NewTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext: dialer.DialContext, MaxIdleConns: 4096, MaxIdleConnsPerHost: 1024, IdleConnTimeout: 4 * time.Second,
		DisableCompression: true, MaxResponseHeaderBytes: 1 << 20, ReadBufferSize: 16 << 10, WriteBufferSize: 64 << 10,
		TLSHandshakeTimeout: 5 * time.Second,
	}
}

var (
	// errLate: the first byte did not come in time.
	errLate = errors.New("no first byte in time")
	// errOverloaded: the engine answered, and not to this request.
	errOverloaded = errors.New("the engine takes no more requests")
)

// answer is an engine's, of which the first bytes have come.
type answer struct {
	response *http.Response
	// first bytes of the body, in buffer; ended: there are no more.
	first  []byte
	ended  bool
	buffer *[]byte
	stop   func()
}

func (r *Router) release(a *answer) {
	a.stop()
	a.response.Body.Close()
	r.buffers.Put(a.buffer)
}

// outgoing makes an engine's request of a client's.
func outgoing(ctx context.Context, e *fleet.Engine, to fleet.Target, in *http.Request, content []byte) (*http.Request, error) {
	target := joinURL(e.URL, in.URL.EscapedPath())
	if in.URL.RawQuery != "" {
		target += "?" + in.URL.RawQuery
	}
	var reader io.Reader = http.NoBody
	if len(content) > 0 {
		reader = bytes.NewReader(content)
	}
	out, err := http.NewRequestWithContext(ctx, in.Method, target, reader)
	if err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	out.Header = in.Header.Clone()
	dropHopByHop(out.Header)
	out.Header.Del("Content-Length")
	out.Header.Del("Expect") // the body is here
	authorize(out.Header, e, "")
	if e.Ranks > 1 {
		out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(to.Rank))
	}
	if host, _, err := net.SplitHostPort(in.RemoteAddr); err == nil {
		if before := out.Header.Get("X-Forwarded-For"); before != "" {
			host = before + ", " + host
		}
		out.Header.Set("X-Forwarded-For", host)
	}
	return out, nil
}

// send sends a request to an engine and waits for the first bytes of its answer's body.
// Until it returns nothing was said to the client. Of an answer that is not streamed the
// first bytes come with the last.
func (r *Router) send(ctx context.Context, to fleet.Target, in *http.Request, content []byte, streamed bool) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() { cancel(nil) }
	if streamed {
		timer := r.after(r.config.FirstByteTimeout, func() { cancel(errLate) })
		defer timer.Stop()
	}
	out, err := outgoing(ctx, r.fleet.Engine(to.Engine), to, in, content)
	if err != nil {
		stop()
		return nil, err
	}
	response, err := r.transport.RoundTrip(out) //nolint:bodyclose // release closes it
	if err != nil {
		err = because(ctx, err)
		stop()
		return nil, err
	}
	a := &answer{response: response, stop: stop, buffer: r.buffer()}
	n, err := readSome(response.Body, *a.buffer)
	a.first, a.ended = (*a.buffer)[:n], errors.Is(err, io.EOF)
	if err != nil && !a.ended {
		err = because(ctx, err)
		r.release(a)
		return nil, err
	}
	return a, nil
}

// because says why a context's request failed, if that was why.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// readSome reads until something has come.
func readSome(from io.Reader, into []byte) (int, error) {
	for {
		if n, err := from.Read(into); n > 0 || err != nil {
			return n, err
		}
	}
}

func (r *Router) buffer() *[]byte {
	if b, ok := r.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 32<<10)
	return &b
}

// copyAnswer passes an answer on as it comes. seen is told what came. If the engine
// breaks off in the middle the client's connection is broken off, too: to an HTTP client
// an end in order would be the whole answer. Between two events one says why; half an
// event is not ended, for it would be taken for a whole one.
func (r *Router) copyAnswer(w http.ResponseWriter, a *answer, seen func([]byte)) (err error) {
	header := w.Header()
	for name, values := range a.response.Header {
		header[name] = values
	}
	dropHopByHop(header)
	w.WriteHeader(a.response.StatusCode)
	control := http.NewResponseController(w)
	var tail []byte
	part, ended := a.first, a.ended
	for {
		// Who reads nothing has a place that others wait for.
		_ = control.SetWriteDeadline(time.Now().Add(r.config.WriteTimeout)) // who can't has none
		if len(part) > 0 {
			seen(part)
			tail = lastOf(tail, part)
			if _, err := w.Write(part); err != nil {
				return fmt.Errorf("%w: %w", errClient, err)
			}
			if !ended {
				if err := control.Flush(); err != nil {
					return fmt.Errorf("%w: %w", errClient, err)
				}
			}
		}
		if ended {
			return nil
		}
		var n int
		n, err = a.response.Body.Read(*a.buffer)
		part, ended = (*a.buffer)[:n], errors.Is(err, io.EOF)
		if err != nil && !ended {
			_ = control.SetWriteDeadline(time.Now().Add(r.config.WriteTimeout))
			_, _ = w.Write(part) // it is broken off anyway
			if tail = lastOf(tail, part); isEvents(a.response.Header) && endsEvent(tail) {
				_, _ = fmt.Fprintf(w, "data: {\"error\":{\"message\":\"the engine broke off\",\"type\":%q,\"code\":502}}\n\n", badGateway)
			}
			_ = control.Flush()
			return err
		}
	}
}

// lastOf returns the last bytes of what came before and a part, as many as matter.
func lastOf(before, part []byte) []byte {
	const most = 4
	before = append(before, part[max(0, len(part)-most):]...)
	return slices.Clone(before[max(0, len(before)-most):])
}

// endsEvent tells whether an event stream that ends so is between two events.
func endsEvent(tail []byte) bool {
	return len(tail) == 0 || bytes.HasSuffix(tail, []byte("\n\n")) || bytes.HasSuffix(tail, []byte("\r\n\r\n"))
}

// errClient: the client has gone.
var errClient = errors.New("the client has gone")

func isEvents(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// failed tells the fleet of an engine that did not answer.
func (r *Router) failed(to fleet.Target, err error) {
	var op *net.OpError
	switch {
	case errors.Is(err, errLate), errors.Is(err, errOverloaded), errors.Is(err, fleet.ErrEngineDown):
	case errors.Is(err, syscall.ECONNREFUSED):
		r.fleet.Refused(to.Engine, err)
	case errors.As(err, &op) && op.Op == "dial" && !op.Timeout():
		// No name, no descriptor, no route: whether the engine is there the polls find out.
	default:
		r.fleet.Broken(to.Engine)
	}
}

// authorize puts an engine's key in, or the client's own.
func authorize(h http.Header, e *fleet.Engine, own string) {
	switch {
	case e.APIKey != "":
		h.Set("Authorization", "Bearer "+e.APIKey)
	case own != "":
		h.Set("Authorization", own)
	}
}

func joinURL(base, path string) string { return strings.TrimSuffix(base, "/") + path }

// dropHopByHop removes what is said to the next in line alone.
func dropHopByHop(h http.Header) {
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}
