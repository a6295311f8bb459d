package zmqx

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/mooncake-sidecar/sidecar/internal/pulse"
)

var (
	// ErrAddressInUse: a live server listens at the path.
	ErrAddressInUse = errors.New("address in use by a live server")
	// ErrNotSocket: something that is no socket stands at the path.
	ErrNotSocket = errors.New("path exists and is not a socket")
	// ErrBadPath: the path is relative, or too long for a socket address.
	ErrBadPath = errors.New("path can't be a socket address")
	// ErrBadEndpoint: it is neither tcp://HOST:PORT nor ipc://PATH.
	ErrBadEndpoint = errors.New("no endpoint")
	// ErrTimeout: no answer within the deadline.
	ErrTimeout = errors.New("no answer within the deadline")
)

// Limits on what a peer may send. Whatever exceeds them costs the peer its
// message (frames) or its connection (bytes).
const (
	// MaxFrames bounds the frames of a request, the envelope not counted.
	MaxFrames = 8
	// MaxFrameBytes bounds one frame. The largest honest one, the hashes of a
	// million tokens in blocks of 16, has 2 MB.
	MaxFrameBytes = 64 << 20
	// receiveQueue bounds the messages that libzmq holds for one peer; a peer
	// that sends more has to wait.
	receiveQueue = 64
)

// Options of a transport.
type Options struct {
	// Mode of the socket files; 0 is 0600.
	Mode os.FileMode
	// Pulse, when not nil, is joined by the loop of every responder, which beats
	// at least once every Interval.
	Pulse    *pulse.Group
	Interval time.Duration
	// Sockets is how many there may be at once; 0 for libzmq's 1023. A question
	// takes one, a subscription none.
	Sockets int
}

// Transport holds the ZeroMQ context, with one I/O thread, that all sockets of a
// process share.
type Transport struct {
	ctx  *zmq4.Context
	opts Options
	// names numbers the inproc endpoints.
	names atomic.Uint64
}

// New makes a transport with the default options.
func New() (*Transport, error) { return NewWith(Options{}) }

// NewWith makes a transport.
func NewWith(opts Options) (*Transport, error) {
	if opts.Mode == 0 {
		opts.Mode = 0o600
	}
	if opts.Pulse == nil || opts.Interval <= 0 {
		opts.Pulse, opts.Interval = nil, -1 // a loop waits for requests only
	}
	ctx, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("zmqx: new context: %w", err)
	}
	if opts.Sockets > 0 {
		if err := ctx.SetMaxSockets(opts.Sockets); err != nil {
			return nil, errors.Join(fmt.Errorf("zmqx: context options: %w", err), ctx.Term())
		}
	}
	return &Transport{ctx: ctx, opts: opts}, nil
}

// Close ends the context.
//
// REQUIRES: every Responder and Client of t has been closed; Close waits for
// them.
func (t *Transport) Close() error {
	if err := t.ctx.Term(); err != nil {
		return fmt.Errorf("zmqx: terminate context: %w", err)
	}
	return nil
}

// newSocket makes a socket that gives up unsent messages when it is closed.
func (t *Transport) newSocket(kind zmq4.Type) (*zmq4.Socket, error) {
	socket, err := t.ctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("zmqx: new socket: %w", err)
	}
	if err := errors.Join(socket.SetLinger(0), socket.SetMaxmsgsize(MaxFrameBytes), socket.SetRcvhwm(receiveQueue)); err != nil {
		return nil, errors.Join(fmt.Errorf("zmqx: socket options: %w", err), socket.Close())
	}
	return socket, nil
}
