package zmqx

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/mooncake-sidecar/sidecar/internal/pulse"
)

// Handler answers one request. It runs in the responder's goroutine, so one
// request at a time. The frames are its own. Returning nil sends no answer,
// which leaves a REQ client waiting.
type Handler func(frames [][]byte) [][]byte

// StreamHandler answers one request with any number of replies. reply returns
// false when the client is gone or its queue is full: it gets no more.
type StreamHandler func(frames [][]byte, reply func(frames [][]byte) bool)

// Responder answers requests on one endpoint.
type Responder struct {
	path   string // of an ipc endpoint
	own    fileID
	serve  StreamHandler
	mode   os.FileMode
	router *zmq4.Socket
	// batch is how many requests are answered between two beats.
	batch int
	// loop beats at least once every interval; -1: nobody wants to know.
	loop     *pulse.Loop
	interval time.Duration
	// control is the loop's end of the pair by which it is stopped.
	control *zmq4.Socket
	poller  *zmq4.Poller

	stop struct {
		sync.Mutex
		socket *zmq4.Socket // nil once used
	}
	done chan struct{}
	// err is why the loop ended by itself; read it after done.
	err error

	stats struct{ requests, malformed, dropped atomic.Uint64 }
}

// ResponderStats counts since the start.
type ResponderStats struct {
	// Requests were handed to the handler.
	Requests uint64
	// Malformed had no REQ envelope, or too many frames; they got no answer,
	// because without an envelope there is no one to answer.
	Malformed uint64
	// Dropped answers found their client gone.
	Dropped uint64
}

// Listen binds the path and starts to answer with handler. The file has its mode
// from the first moment at which the path leads to it.
func (t *Transport) Listen(path string, handler Handler) (*Responder, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return t.listen("ipc://"+path, 0, drainBatch, func(frames [][]byte, reply func([][]byte) bool) {
		if answer := handler(frames); answer != nil {
			reply(answer)
		}
	})
}

// ListenStream binds an endpoint, ipc or tcp, and answers with handler. A client is
// sent queue replies that it has not read, whatever their bytes; the rest is dropped.
func (t *Transport) ListenStream(endpoint string, queue int, handler StreamHandler) (*Responder, error) {
	return t.listen(endpoint, queue, 1, handler) // one has many replies
}

func (t *Transport) listen(endpoint string, queue, batch int, handler StreamHandler) (*Responder, error) {
	r := &Responder{serve: handler, batch: batch, mode: t.opts.Mode, interval: t.opts.Interval, done: make(chan struct{})}
	if err := r.open(t, endpoint, queue); err != nil {
		return nil, errors.Join(err, r.closeSockets(), r.closeStop())
	}
	r.loop = t.opts.Pulse.Join()
	go r.run()
	return r, nil
}

// open makes the sockets and claims the endpoint. queue is 0 for libzmq's own.
func (r *Responder) open(t *Transport, endpoint string, queue int) (err error) {
	if r.router, err = t.newSocket(zmq4.ROUTER); err != nil {
		return err
	}
	if queue > 0 {
		if err := r.router.SetSndhwm(queue); err != nil {
			return fmt.Errorf("zmqx: socket options: %w", err)
		}
	}
	// Without this an answer to a client that is gone would vanish uncounted.
	if err := r.router.SetRouterMandatory(1); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	if r.control, err = t.newSocket(zmq4.PAIR); err != nil {
		return err
	}
	if r.stop.socket, err = t.newSocket(zmq4.PAIR); err != nil {
		return err
	}
	pair := "inproc://stop-" + strconv.FormatUint(t.names.Add(1), 10)
	if err := errors.Join(r.control.Bind(pair), r.stop.socket.Connect(pair)); err != nil {
		return fmt.Errorf("zmqx: control pair: %w", err)
	}
	r.poller = zmq4.NewPoller()
	r.poller.Add(r.router, zmq4.POLLIN)
	r.poller.Add(r.control, zmq4.POLLIN)
	r.path, r.own, err = bindEndpoint(r.router, endpoint, r.mode)
	return err
}

// Path returns the bound path.
func (r *Responder) Path() string { return r.path }

// Done is closed when the responder has stopped answering, be it by Close or by
// a fault.
func (r *Responder) Done() <-chan struct{} { return r.done }

// Stats returns the counters.
func (r *Responder) Stats() ResponderStats {
	return ResponderStats{Requests: r.stats.requests.Load(), Malformed: r.stats.malformed.Load(), Dropped: r.stats.dropped.Load()}
}

// Close stops the loop after the request at hand, waits for it, and removes the
// socket file if it is still ours. It must not be called from the handler. Only
// the first call reports errors.
func (r *Responder) Close() error {
	r.stop.Lock()
	socket := r.stop.socket
	r.stop.socket = nil
	r.stop.Unlock()
	if socket == nil {
		<-r.done
		return nil
	}
	// The loop may have ended by itself; then nobody reads, and must not block us.
	_, err := socket.SendBytes([]byte{0}, zmq4.DONTWAIT)
	if err != nil {
		err = fmt.Errorf("zmqx: stop: %w", err)
	}
	<-r.done
	return errors.Join(r.err, err, socket.Close(), removeEndpoint(r.path, r.own))
}

// closeSockets closes the loop's sockets.
func (r *Responder) closeSockets() error {
	var errs []error
	for _, socket := range []*zmq4.Socket{r.router, r.control} {
		if socket != nil {
			errs = append(errs, socket.Close())
		}
	}
	return errors.Join(errs...)
}

func (r *Responder) closeStop() error {
	if r.stop.socket == nil {
		return nil
	}
	return r.stop.socket.Close()
}
