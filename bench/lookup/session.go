package lookup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/version"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// keeper hands a segment to the lookupd that asks for it, as a worker does.
type keeper struct {
	listener *unixmsg.Listener
	done     chan struct{}
}

// keep serves at a worker's socket in the runtime directory.
func keep(dir string, segment *shm.Segment, layout *embedded.Layout) (*keeper, error) {
	l, err := unixmsg.Listen(filepath.Join(dir, "worker-bench-0.sock"), unixmsg.Options{})
	if err != nil {
		return nil, err
	}
	k := &keeper{listener: l, done: make(chan struct{})}
	offer := &connector.Segments{Type: connector.TypeSegments, FDs: 1, Segments: []connector.SegmentInfo{{
		UUID: hex.EncodeToString(layout.UUID[:]), Bytes: layout.FileBytes, DataOffset: layout.DataOffset,
	}}}
	go func() {
		defer close(k.done)
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_ = offerTo(conn, offer, segment.FD()) // lookupd says what it misses
				_ = conn.Close()                       // all is said
			}
		}
	}()
	return k, nil
}

func offerTo(conn *unixmsg.Conn, offer *connector.Segments, fd int) error {
	frames := connector.NewFrameReader(conn)
	if _, err := connector.Receive[connector.Hello](frames); err != nil {
		return err
	}
	welcome := &connector.Welcome{Type: connector.TypeWelcome, Protocol: connector.ProtocolVersion, Daemon: "mooncake-worker", Version: version.Version, PID: os.Getpid(), Session: 1}
	if err := say(conn, welcome); err != nil {
		return err
	}
	return say(conn, offer, fd)
}

// close waits for the end of serving.
func (k *keeper) close() {
	_ = k.listener.Close() // nobody asks any more
	<-k.done
}

// engine is a registered engine: its lookup socket is there until it is closed.
type engine struct {
	conn *unixmsg.Conn
	// channel is the end of its lookup channel that a client asks on.
	channel *os.File
	// stride is how sparse lookups on it may be.
	stride int
}

func (e *engine) close() {
	_ = e.channel.Close() // whoever asks has it too
	_ = e.conn.Close()    // the daemon unbinds the socket
}

// register opens an engine's session with a lookup channel.
func register(ctx context.Context, dir, path string, tp int, spec *kv.NamespaceSpec) (*engine, error) {
	conn, err := unixmsg.Dial(ctx, filepath.Join(dir, "lookupd.sock"), nil)
	if err != nil {
		return nil, err
	}
	frames := connector.NewFrameReader(conn)
	name := fmt.Sprintf("bench-tp%d", tp)
	hello := &connector.Hello{
		Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: connector.RoleSchedulerShim,
		PID: os.Getpid(), EngineID: name, Epoch: 1, Version: version.Version,
	}
	registration := &connector.Engine{
		Type: connector.TypeEngine, Namespace: *spec, LookupPath: path, LookupEngine: name,
		LookupTimeoutMS: int((2 * answerPatience).Milliseconds()), // what is asked is found out whole
	}
	e := &engine{conn: conn}
	if e.stride, err = converse(conn, frames, hello, registration); err == nil {
		e.channel, err = openChannel(conn)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register an engine: %w", err), conn.Close())
	}
	return e, nil
}

// openChannel hands the daemon one end of a lookup channel and returns the other.
func openChannel(conn *unixmsg.Conn) (*os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lookup channel: %w", err)
	}
	defer unix.Close(ends[1])
	if err := say(conn, &connector.LookupChannel{Type: connector.TypeLookupChannel, FDs: 1}, ends[1]); err != nil {
		return nil, errors.Join(err, unix.Close(ends[0]))
	}
	return os.NewFile(uintptr(ends[0]), "lookup channel"), nil
}

// converse registers an engine and returns how sparse its lookups may be.
func converse(conn *unixmsg.Conn, frames *connector.FrameReader, hello *connector.Hello, engine *connector.Engine) (stride int, err error) {
	if err := say(conn, hello); err != nil {
		return 0, err
	}
	if _, err := connector.Receive[connector.Welcome](frames); err != nil {
		return 0, err
	}
	if err := say(conn, engine); err != nil {
		return 0, err
	}
	registered, err := connector.Receive[connector.Registered](frames)
	if err != nil {
		return 0, err
	}
	return registered.LookupStride, nil
}

func say(conn *unixmsg.Conn, msg any, fds ...int) error {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	return conn.WriteFDs(frame, fds)
}
