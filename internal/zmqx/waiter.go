package zmqx

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// waiter waits until a socket has something to read, and holds no thread meanwhile: an
// indexer has thousands of sockets, and a goroutine in zmq_poll is a thread. libzmq gives
// each socket a descriptor that becomes readable when its state may have changed, which
// Go's own poller watches.
type waiter struct {
	socket *zmq4.Socket
	// file is a duplicate of the socket's descriptor; libzmq closes its own.
	file *os.File
	raw  syscall.RawConn
	// stopped: the owner is to leave the socket alone.
	stopped atomic.Bool
}

// errStopped: the waiter was told to stop.
var errStopped = errors.New("stopped")

func newWaiter(socket *zmq4.Socket) (*waiter, error) {
	descriptor, err := socket.GetFd()
	if err != nil {
		return nil, fmt.Errorf("zmqx: socket's descriptor: %w", err)
	}
	own, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a descriptor
	if err != nil {
		return nil, fmt.Errorf("zmqx: socket's descriptor: %w", err)
	}
	w := &waiter{socket: socket, file: os.NewFile(uintptr(own), "zmq")} //nolint:gosec // a descriptor
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // an error where nobody would watch it
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zmqx: watch a socket: %w", err), w.file.Close())
	}
	return w, nil
}

// wait returns when the socket has something to read, or errStopped.
//
// REQUIRES: it is called by the goroutine that owns the socket.
func (w *waiter) wait() error {
	var failed error
	err := w.raw.Read(func(uintptr) bool {
		if w.stopped.Load() {
			return true
		}
		// The descriptor says only that something has changed: what, this asks for, and
		// must be asked for before each wait.
		events, err := w.socket.GetEvents()
		failed = err
		return err != nil || events&zmq4.POLLIN != 0
	})
	switch {
	case w.stopped.Load():
		return errStopped
	case failed != nil:
		return fmt.Errorf("zmqx: wait: %w", failed)
	case err != nil:
		return fmt.Errorf("zmqx: wait: %w", err)
	}
	return nil
}

// stop has wait return, now and from now on. Anybody may call it.
func (w *waiter) stop() {
	w.stopped.Store(true)
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // an error: it was closed
}

// close gives the descriptor back.
//
// REQUIRES: nobody waits.
func (w *waiter) close() error { return w.file.Close() }

// drain hands over all messages that a socket has. Those of too many frames are left out
// and counted.
func (w *waiter) drain(hear func(frames [][]byte), malformed *atomic.Uint64) error {
	for !w.stopped.Load() {
		frames, ok, err := receiveMessage(w.socket)
		switch {
		case isErrno(err, syscall.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("zmqx: receive: %w", err)
		case !ok:
			malformed.Add(1)
		default:
			hear(frames)
		}
	}
	return errStopped
}

// receiveMessage reads a message if there is one. ok is false when it has more than
// MaxFrames frames.
func receiveMessage(socket *zmq4.Socket) (frames [][]byte, ok bool, err error) {
	frames, ok = make([][]byte, 0, 4), true
	for flags := zmq4.DONTWAIT; ; flags = 0 { // a message arrives whole
		frame, err := socket.RecvBytes(flags)
		for isErrno(err, syscall.EINTR) {
			frame, err = socket.RecvBytes(flags)
		}
		if err != nil {
			return nil, false, err
		}
		if len(frames) < MaxFrames {
			frames = append(frames, frame)
		} else {
			ok = false
		}
		more, err := socket.GetRcvmore()
		if err != nil {
			return nil, false, err
		}
		if !more {
			return frames, ok, nil
		}
	}
}
